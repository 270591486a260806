"""How much arithmetic training a model needs, whatever the plan and what it computes twice.

Source: PaLM (Chowdhery et al., 2022), appendix B: 6 operations for each parameter that multiplies a
token, and 12 L H Q T for the scores of attention, the causal half not taken off.
"""

from __future__ import annotations

from functools import cache

from planner.model.shape import ModelShape
from planner.model.tensors import layer_tensors

MATRIX = 2  # dimensions of a tensor that multiplies tokens


@cache
def flops_per_token(model: ModelShape, sequence_length: int) -> float:
    """Floating-point operations of forward and backward pass for one token.

    Of routed experts those count that a token visits; the embedding is a look-up and counts none.
    """
    used = 0.0
    for layer in range(1, model.layers + 2):
        for tensor in layer_tensors(model, layer):
            if len(tensor.shape) < MATRIX:
                continue
            experts = model.experts
            share = experts.per_token / experts.count if tensor.experts and experts else 1.0
            used += share * tensor.numel
    head = {tensor.name for tensor in layer_tensors(model, model.layers + 1)}
    if f"{model.layers + 1}.weight" not in head:  # tied: the embedding's weight multiplies here
        used += model.padded_vocab * model.hidden
    width = model.heads * model.head_dim
    return 6.0 * used + 12.0 * model.layers * width * sequence_length
