"""One job in bf16 and one in fp16, through a change of plan: as near to a plain process as two
plain processes are to each other that cut the batch into other micro-batches."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from planner.model.catalogue import find_model
from planner.plans.plan import Plan
from tests.distributed.pods import Pods, place, template
from worker.contract import TrainingSpec
from worker.training_settings import LossScale

pytestmark = [pytest.mark.slow, pytest.mark.system]
STEPS, BATCH = 50, 8
MICRO_BATCHES = (1, 2, 4)  # of the plain processes
SPREAD = 2.0  # times the largest difference between two of them


def recomputing(plan: Plan, *hows: str) -> Plan:
    """The plan, whose templates compute again what the word says, one for each."""
    templates = tuple(
        replace(one, stages=tuple(replace(stage, recompute=how) for stage in one.stages))
        for one, how in zip(plan.templates, hows, strict=True)
    )
    return Plan(templates, plan.placement)


A = place((template("1x4+1x2", 1, 5), template("1x6", 1, 3)), [("a", 0), ("a", 1), ("a", 2)])
B = place((template("2x1+1x5", 2, 4),), [("a", 0), ("a", 1), ("a", 3)])  # 2 leaves, 3 joins
A = recomputing(A, "selective", "full")
B = recomputing(B, "full")


def gpus(plan: Plan) -> set[tuple[str, int]]:
    return {(placed.node, gpu) for placed in plan.placement for gpu in placed.gpus}


def spec_of(corpus: Path, precision: str) -> TrainingSpec:
    # So low that nothing overflows: near the edge a plan decides in which step it does.
    scale = LossScale(initial=2**10, window=20) if precision == "fp16" else None
    return TrainingSpec(
        model="tiny-llama",
        data=str(corpus),
        global_batch=BATCH,
        sequence_length=32,
        steps=STEPS,
        learning_rate=3e-4,
        warmup_steps=0,
        precision=precision,
        loss_scale=scale,
        verify="Full",
    )


def trained(folder: Path, spec: TrainingSpec) -> tuple[list[float], list[float], list[set[str]]]:
    """Losses and norms of all steps under A, then B, and the digests before and after."""
    pods = Pods(folder)
    try:
        pods.start("a")
        pods.change(pods.directive(1, A, spec, "a", reason="start"))
        pods.pods["a"].wait(lambda report: any(r.step >= STEPS // 2 for r in report.ranks))
        holds = dict.fromkeys(gpus(A), 1)
        pods.change(pods.directive(2, B, spec, "a", holds=holds, layouts={1: A}))
        pods.pods["a"].wait(lambda report: all(rank.phase == "done" for rank in report.ranks))
        report = pods.pods["a"].report()
    finally:
        pods.close()
    found = {step.step: step for step in report.steps}
    assert sorted(found) == list(range(STEPS))
    assert {step.epoch for step in found.values()} == {1, 2}
    moved = [switch for switch in report.switches if switch.epoch == 2]
    digests = [
        {s.state_digest_before for s in moved},
        {s.state_digest_after for s in moved} - {None},
    ]
    rows = [found[step] for step in range(STEPS)]
    return [row.loss for row in rows], [row.gradient_norm for row in rows], digests


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_loss_curve_is_one_of_those_of_plain_processes(precision, tmp_path, corpus) -> None:
    from worker.engine.reference.training import train

    spec = spec_of(corpus, precision)
    model = find_model(spec.model)
    plain = [train(spec, model, STEPS, micro_batch=b)[0] for b in MICRO_BATCHES]
    spread = max(
        abs(one[step] - other[step]) for one in plain for other in plain for step in range(STEPS)
    )
    losses, norms, (before, after) = trained(tmp_path, spec)
    worst = min(
        max(abs(loss - expected) for loss, expected in zip(losses, one, strict=True))
        for one in plain
    )
    assert worst <= SPREAD * spread
    assert losses[-1] < losses[0] - 0.5
    assert len(before) == 1
    assert before == after
    assert all(map(math.isfinite, norms))
