"""Recomputation of activations in a backward pass.

Source: Chen et al., "Training deep nets with sublinear memory cost"; `selective` is Megatron-LM's:
the attention core alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

Function = Callable[..., torch.Tensor]


def computed_again(function: Function, *inputs: torch.Tensor) -> torch.Tensor:
    """Result of a function; its backward pass keeps the inputs, and calls it again.

    Args:
        function: gives the same numbers for the same inputs, whenever it is called; all ranks of a
            TP group call it together both times.
        inputs: all that it depends on besides weights.
    """
    result = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(result, torch.Tensor)
    return result
