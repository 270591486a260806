"""Initial weights as a pure function of (seed, tensor name, rows), never of rank or plan.

Every tensor is generated in fixed blocks along the dimension that TP cuts, each block from a hash
of its name, so that a rank generates only the blocks that it holds, and any cut of the same tensor
has the same numbers.  Of a stack of experts each is a tensor of its own.  Norms begin as ones,
biases as zeros; rows that no token has stay zero.
"""

from __future__ import annotations

import hashlib

import torch

from planner.model.tensors import Tensor

BLOCKS = 8  # per sharded tensor; a shard generates only the blocks that it touches


def initial_rows(
    seed: int,
    deviation: float,
    tensor: Tensor,
    start: int,
    stop: int,
    experts: range | None = None,
) -> torch.Tensor:
    """Rows [start, stop) of a tensor along its row dimension, fp32.

    Args:
        seed: of the job.
        deviation: standard deviation of matrices.
        tensor: of the model.
        start: the first row.
        stop: behind the last one.
        experts: those of a stack to give; None: all.
    """
    if tensor.experts:
        assert tensor.dim is not None  # each expert is cut
        one = tensor._replace(shape=tensor.shape[1:], dim=tensor.dim - 1, experts=0)
        names = (f"{tensor.name}/{expert}" for expert in experts or range(tensor.experts))
        parts = (one._replace(name=name) for name in names)
        return torch.stack([initial_rows(seed, deviation, part, start, stop) for part in parts])
    if len(tensor.shape) == 1:
        is_bias = tensor.name.endswith("_bias")
        return torch.zeros(stop - start) if is_bias else torch.ones(stop - start)
    dim = tensor.dim or 0
    size = tensor.shape[dim]
    cuts = [index * size // BLOCKS for index in range(BLOCKS + 1)]
    wanted = [i for i in range(BLOCKS) if cuts[i] < stop and start < cuts[i + 1]]
    blocks = [_block(seed, tensor, dim, i, cuts[i + 1] - cuts[i]) for i in wanted]
    first = cuts[wanted[0]]
    rows = torch.cat(blocks, dim=dim).narrow(dim, start - first, stop - start) * deviation
    if tensor.padding:
        rows[max(0, size - tensor.padding - start) :] = 0.0
    return rows


def _block(seed: int, tensor: Tensor, dim: int, index: int, rows: int) -> torch.Tensor:
    key = hashlib.blake2b(f"{seed}/{tensor.name}/{index}".encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key, "big"))
    shape = list(tensor.shape)
    shape[dim] = rows
    return torch.randn(shape, generator=generator)
