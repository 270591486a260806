"""How many bytes a change of plan must move to each GPU.

A GPU keeps what it holds, wherever its new rank is; what its new layout needs beyond that must come
from others.  Closed form of the piece table's answer (a law test compares them), because the search
asks often.
Source: design, section 3 ("only missing bytes move").
"""

from __future__ import annotations

from planner.model.shape import ModelShape
from planner.model.tensors import layer_tensors, shard_numel
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap, Seat

STATE_BYTES = 12  # per parameter: fp32 master and two fp32 moments


def shared_numel(model: ModelShape, one: Seat, other: Seat) -> int:
    """Parameters that both seats hold."""
    layers = range(
        max(one.layers.start, other.layers.start), min(one.layers.stop, other.layers.stop)
    )
    shared = 0
    for layer in layers:
        for tensor in layer_tensors(model, layer):
            if tensor.dim is None:
                shared += tensor.numel
                continue
            rows = tensor.shape[tensor.dim]
            start = max(one.slot * rows // one.tp, other.slot * rows // other.tp)
            stop = min((one.slot + 1) * rows // one.tp, (other.slot + 1) * rows // other.tp)
            shared += max(0, stop - start) * (tensor.numel // rows)
    return shared


def held_numel(model: ModelShape, seat: Seat) -> int:
    """Parameters that a seat holds."""
    return sum(
        shard_numel(tensor, seat.tp)
        for layer in seat.layers
        for tensor in layer_tensors(model, layer)
    )


def missing_bytes(model: ModelShape, current: Plan, plan: Plan) -> dict[tuple[str, int], int]:
    """Bytes of the new layout that each GPU, as (node, index), did not hold before."""
    before = {(seat.node, seat.gpu): seat for seat in RankMap.of(current).seats}
    missing: dict[tuple[str, int], int] = {}
    for seat in RankMap.of(plan).seats:
        gpu = (seat.node, seat.gpu)
        kept = shared_numel(model, seat, before[gpu]) if gpu in before else 0
        missing[gpu] = (held_numel(model, seat) - kept) * STATE_BYTES
    return missing


def bytes_to_move(model: ModelShape, current: Plan, plan: Plan) -> int:
    """Bytes that a change from one plan to the other must move in all."""
    return sum(missing_bytes(model, current, plan).values())
