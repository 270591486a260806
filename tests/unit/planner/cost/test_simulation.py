"""The event simulation on cases that can be done by hand."""

from __future__ import annotations

import importlib

import pytest

from planner.cost.evaluate import ReplicaCost, StageCost, cost_of
from planner.cost.simulation import replica_seconds, simulate_replica, simulated_seconds
from tests.builders import demo_profile, nodes, on_one_node, template, workload


def end_s(*stages: StageCost, micro_batches: int) -> float:
    timeline = simulate_replica(ReplicaCost(0, 0, micro_batches, stages))
    return max(entry.end_s for entry in timeline)


def test_one_stage_takes_its_micro_batches_one_after_the_other():
    assert (
        end_s(
            StageCost(forward_s=1.0, backward_s=2.0, to_previous_s=0.0, to_next_s=0.0, memory=0),
            micro_batches=4,
        )
        == 12.0
    )


def test_two_equal_stages_without_messages_take_m_plus_1_turns():
    stage = StageCost(forward_s=1.0, backward_s=1.0, to_previous_s=0.0, to_next_s=0.0, memory=0)
    assert end_s(stage, stage, micro_batches=4) == 10.0


def test_a_message_keeps_both_ends_busy():
    stages = (
        StageCost(forward_s=1.0, backward_s=1.0, to_previous_s=0.0, to_next_s=0.5, memory=0),
        StageCost(forward_s=1.0, backward_s=1.0, to_previous_s=0.5, to_next_s=0.0, memory=0),
    )
    # forward, message, forward and backward of the last, message, backward
    assert end_s(*stages, micro_batches=1) == 1.0 + 0.5 + 2.0 + 0.5 + 1.0


def test_a_step_ends_with_sync_and_optimizer_after_the_slowest_replica():
    plan = on_one_node(template("1x3 1x3", 2, (3, 2)), template("2x6", 2, (1,)))
    composition = nodes("fast-0:6")
    priced = cost_of(plan, workload(12), composition, demo_profile())
    slowest_s = max(event.end_s for r in priced.replicas for event in simulate_replica(r))
    assert simulated_seconds(priced) == slowest_s + priced.sync_s + priced.optimizer_s


def test_a_million_micro_batches_are_played_at_once():
    stage = StageCost(forward_s=1.0, backward_s=1.0, to_previous_s=0.0, to_next_s=0.0, memory=0)
    assert replica_seconds(ReplicaCost(0, 0, 2**20, (stage,) * 2)) == 2.0 * (2**20 + 1)


NAMES = {
    "RecvActivation": "receive_activation",
    "SendActivation": "send_activation",
    "RecvGrad": "receive_gradient",
    "SendGrad": "send_gradient",
    "ForwardPass": "forward",
    "BackwardPass": "backward",
}


def deepspeed_order(micro_batches: int, depth: int, stage: int) -> list[str]:
    schedule = importlib.import_module("deepspeed.runtime.pipe.schedule")
    steps = schedule.TrainSchedule(micro_batches, depth, stage)
    found = [type(command).__name__ for commands in steps for command in commands]
    return [NAMES[name] for name in found if name in NAMES]


def order(micro_batches: int, depth: int, stage: int) -> list[tuple[str, int]]:
    replica = ReplicaCost(
        0,
        0,
        micro_batches,
        (StageCost(forward_s=1.0, backward_s=2.0, to_previous_s=0.5, to_next_s=0.5),) * depth,
    )
    events = simulate_replica(replica)
    return [(event.operation, event.micro_batch) for event in events if event.stage == stage]


@pytest.mark.slow  # imports deepspeed
def test_the_order_is_deepspeeds():
    for micro_batches in range(1, 10):
        for depth in range(1, 7):
            for stage in range(depth):
                mine = [operation for operation, _ in order(micro_batches, depth, stage)]
                assert mine == deepspeed_order(micro_batches, depth, stage)


def test_each_micro_batch_passes_once_forward_and_once_back():
    done = order(5, 3, 1)
    for operation in NAMES.values():
        assert [m for name, m in done if name == operation] == list(range(5))


def test_a_lone_stage_talks_to_nobody():
    assert {operation for operation, _ in order(3, 1, 0)} == {"forward", "backward"}
