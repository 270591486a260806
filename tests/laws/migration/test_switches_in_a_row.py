"""Several changes in a row, of plans with experts tiled in any way: no bit of the state is lost,
and no more memory is taken than what arrives and what must be cut anew."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from planner.model.tensors import layer_tensors
from planner.plans.pieces import shard
from planner.plans.ranks import RankMap
from tests.builders import MOE, moe_plans
from tests.equal_tensors import are_equal
from tests.fakes.transport import Board
from tests.laws.migration.changes import cut, whole_state
from tests.unit.worker.changes import change, pod_of
from tests.unit.worker.switches import AT_7, Watched, kept_bytes
from worker.rank.move import plan_move
from worker.rank.preparation import Prepared, Successor
from worker.rank.switch import Switch
from worker.state.held_state import HeldState
from worker.state.shards import TargetShards


def first_homes(plan, state):
    """{(node, GPU): (seat, shards)} of a plan that holds the state."""
    return {
        (seat.node, seat.gpu): (
            seat,
            {
                tensor.name: tuple(part.clone() for part in cut(state, box, MOE))
                for tensor, box in boxes(seat)
            },
        )
        for seat in RankMap.of(plan).seats
    }


def boxes(seat):
    """(tensor, box) of everything that a seat holds."""
    return [(t, shard(t, seat)) for layer in seat.layers for t in layer_tensors(MOE, layer)]


def switch(old, new, homes):
    """Where the state is after one change, by the product's own transaction."""
    directive = change(old, new)
    transports = Board(len(directive.members), timeout_s=60).transports()
    store, rows = HashStore(), []
    for row, transport in zip(directive.members, transports, strict=True):
        held = HeldState(MOE)
        if row.holds is not None:
            held.add_shards(*homes[row.node, row.gpu])
        move = plan_move(MOE, directive, pod_of(row.node), row.slot, "gloo")
        services, successor = Watched(), None
        if move.seat is not None:
            target = TargetShards.of(MOE, move.seat, held, services.activity)
            successor = Successor(SimpleNamespace(connects_late=False), target, None)
        prepared = Prepared(move=move, store=store, transport=transport, successor=successor)
        progress = AT_7 if row.holds is not None else None
        rows.append(
            (Switch(model=MOE, prepared=prepared, services=services, progress=progress), held)
        )
    with ThreadPoolExecutor(len(rows)) as pool:
        outcomes = list(pool.map(lambda row: row[0].run(row[1], lambda: False, lambda: None), rows))
    assert set(outcomes) == {"commit"}
    for one, held in rows:
        if one.prepared.successor is not None:
            came = one.prepared.move.bytes_needed + kept_bytes(one.prepared, held)
            assert one.prepared.successor.target.bytes_allocated == came
    found = [(one.prepared.move.member, one.prepared.successor) for one, _ in rows]
    return {
        (member.node, member.gpu): (successor.target.seat, successor.target.shards)
        for member, successor in found
        if successor is not None
    }


@pytest.mark.slow
@given(st.lists(moe_plans(), min_size=3, max_size=4))
@settings(max_examples=5, deadline=None)
def test_the_state_is_bitwise_the_same_after_any_changes_in_a_row(plans):
    state = whole_state(MOE)
    homes = first_homes(plans[0], state)
    for old, new in pairwise(plans):
        homes = switch(old, new, homes)
    assert set(homes) == {(seat.node, seat.gpu) for seat in RankMap.of(plans[-1]).seats}
    for seat, shards in homes.values():
        for tensor, box in boxes(seat):
            assert are_equal(shards[tensor.name], cut(state, box, MOE))
