"""The 1F1B order against DeepSpeed's own."""

from __future__ import annotations

import importlib

import pytest

from planner.cost.schedule import stage_instructions

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


@pytest.mark.slow  # imports deepspeed
def test_the_order_is_deepspeeds():
    for micro_batches in range(1, 10):
        for depth in range(1, 7):
            for stage in range(depth):
                mine = stage_instructions(micro_batches, depth, stage)
                assert [i.operation for i in mine] == deepspeed_order(micro_batches, depth, stage)


def test_each_micro_batch_passes_once_forward_and_once_back():
    order = stage_instructions(5, 3, 1)
    for operation in NAMES.values():
        assert [i.micro_batch for i in order if i.operation == operation] == list(range(5))


def test_a_lone_stage_talks_to_nobody():
    assert {i.operation for i in stage_instructions(3, 1, 0)} == {"forward", "backward"}
