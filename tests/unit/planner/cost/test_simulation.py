"""The event simulation on cases that can be done by hand."""

from __future__ import annotations

import pytest

from planner.cost.evaluate import ReplicaPrice, StagePrice, price
from planner.cost.simulation import simulate, simulate_replica
from tests.builders import demo_profile, nodes, on_one_node, template, workload


def end_s(*stages: StagePrice, micro_batches: int) -> float:
    timeline = simulate_replica(ReplicaPrice(0, 0, micro_batches, stages))
    return max(entry.end_s for entry in timeline)


def test_one_stage_takes_its_micro_batches_one_after_the_other():
    assert end_s(StagePrice(1.0, 2.0, 0.0, 0.0, 0), micro_batches=4) == 12.0


def test_two_equal_stages_without_messages_take_m_plus_1_turns():
    stage = StagePrice(1.0, 1.0, 0.0, 0.0, 0)
    assert end_s(stage, stage, micro_batches=4) == 10.0


def test_a_message_keeps_both_ends_busy():
    stages = (StagePrice(1.0, 1.0, 0.0, 0.5, 0), StagePrice(1.0, 1.0, 0.5, 0.0, 0))
    # forward, message, forward and backward of the last, message, backward
    assert end_s(*stages, micro_batches=1) == 1.0 + 0.5 + 2.0 + 0.5 + 1.0


def test_a_step_ends_with_sync_and_optimizer_after_the_slowest_replica():
    plan = on_one_node(template("1x3 1x3", 2, (3, 2)), template("2x6", 2, (1,)))
    composition = nodes("fast-0:6")
    priced = price(plan, workload(12), composition, demo_profile())
    simulated = simulate(plan, workload(12), composition, demo_profile())
    assert simulated.step_s == pytest.approx(
        max(simulated.replica_s) + priced.sync_s + priced.optimizer_s
    )
    seats = {(entry.template, entry.replica, entry.stage) for entry in simulated.timeline}
    assert seats == {(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0)}
