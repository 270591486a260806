"""The bits of what a rank owns and multiplies, piece by piece."""

from __future__ import annotations

import hashlib
from typing import Any

from planner.model.shape import ModelShape
from planner.plans.plan import Plan


def bits_of(model: ModelShape, plan: Plan, target: Any) -> dict[str, str]:
    """{piece: digest} of the state that a rank owns, and of what it multiplies."""
    from planner.model.tensors import held_tensors
    from planner.plans.pieces import contains, held_pieces, owned, shard
    from planner.plans.regions import state_refinement
    from worker.model.boxes import view

    cuts, found = state_refinement([plan.with_zero(1)]), {}
    for tensor in held_tensors(model, target.seat.layers):
        box, mine = shard(tensor, target.seat), owned(tensor, target.seat)
        for piece in held_pieces(tensor, target.seat, cuts):
            name = f"{piece.tensor}/{piece.start}/{piece.expert_start}"
            (weight,) = view(tensor, box, (target.buffers.weights[tensor.name],), piece)
            found[f"multiplied {name}"] = digest_of(weight)
            if contains(mine, piece):
                found[f"state {name}"] = digest_of(
                    *view(tensor, mine, target.shards[tensor.name], piece)
                )
    return found


def digest_of(*tensors: Any) -> str:
    """Of their numbers."""
    hasher = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        hasher.update(tensor.float().contiguous().numpy().tobytes())
    return hasher.hexdigest()
