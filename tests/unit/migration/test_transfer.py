"""Flows, their messages, and the one order of all messages."""

from __future__ import annotations

import time

from benchmarks.migration.changes import change_between, uniform_plan
from migration.transfer import MESSAGE_BYTES, plan_transfer
from planner.model.catalogue import find_model
from tests.laws.migration.changes import Change
from tests.unit.worker.changes import plan

JOIN = Change(plan("1x3"), plan("1x3", "1x3"), frozenset())


def test_messages_are_about_as_large_as_asked():
    for size in (500, 3000):
        mine = JOIN.transfer(message_bytes=size).messages(0)
        assert len(mine) > 3
        assert all(message.num_bytes < 2 * size for message in mine)


def test_a_rank_that_neither_sends_nor_receives_has_no_message():
    change = Change(plan("1x3", "1x3"), plan("1x3", "1x3", "1x3"), frozenset())
    lonely = [r for r in range(3) if not change.transfer(10**9, 10**9).messages(r)]
    assert len(lonely) == 1


def test_all_flows_go_on_side_by_side_and_end_together():
    model = find_model("gpt-neo-2.7b")
    change = change_between(model, uniform_plan(model, 4, 1, 4), uniform_plan(model, 8, 1, 4))
    transfer = plan_transfer(change.held, change.needed, change.node_of)
    for flow in range(len(transfer.flows)):
        turns = [turn.time for turn, _, after in transfer.turns(flow) if after is None]
        assert turns == sorted(turns)
        assert abs(turns[0] + turns[-1] - (1 << 32)) < 8
    assert max(flow.num_bytes / flow.messages for flow in transfer.flows) <= MESSAGE_BYTES


def test_512_gpus_are_planned_in_two_seconds_of_a_core():
    """Measured: 0.3 s; see docs/results/migration.md."""
    model = find_model("qwen3-32b")
    change = change_between(model, uniform_plan(model, 480, 8, 5), uniform_plan(model, 512, 4, 8))
    started = time.process_time()
    transfer = plan_transfer(change.held, change.needed, change.node_of)
    assert transfer.messages(100)
    assert time.process_time() - started < 2
