"""Whether tensors are equal, of which there must be some: `all` of an empty map says yes."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def are_equal(some: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Whether two rows have as many tensors, at least one, and each the other's numbers."""
    pairs = list(zip(some, others, strict=True))
    return bool(pairs) and all(torch.equal(one, other) for one, other in pairs)
