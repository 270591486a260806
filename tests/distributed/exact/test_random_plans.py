"""One job through random irregular plans, several changes in a row: exact, and every copy equal."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from planner.model.catalogue import find_model
from planner.model.shape import ModelShape
from planner.plans.plan import Plan
from tests.distributed.pods import Pods
from tests.distributed.random_plans import random_plan, tiled_plan
from tests.families import FAMILIES, MIXTURES
from worker.contract import TrainingSpec

pytestmark = [pytest.mark.slow, pytest.mark.system]
GPUS, BATCH = 6, 8
PLANS = 5
STEPS_EACH = 4
TOLERANCE = 1e-5  # regrouping perturbs fp32 sums; at this rate and length they stay within 1e-6


@pytest.mark.parametrize(
    ("seed", "model"),
    [
        (1, find_model("tiny-llama")),
        (2, find_model("tiny-llama")),
        (3, FAMILIES["gpt2"]),  # tied, with dropout
        (4, FAMILIES["qwen3"]),
        (5, MIXTURES["mixtral"]),  # experts spread, cut and copied
        (6, MIXTURES["deepseek-v3"]),  # whose biases move with the rest
    ],
    ids=["tiny-llama", "tiny-llama", "gpt2", "qwen3", "mixtral", "deepseek-v3"],
)
def test_random_plans_in_a_row_are_exact(
    seed: int, model: ModelShape, tmp_path: Path, corpus: Path
) -> None:
    from worker.engine.reference.training import train

    choose = random.Random(seed)
    plans = [
        tiled_plan(choose, GPUS, model, BATCH)
        if model.experts
        else random_plan(choose, GPUS, model.layers, BATCH)
        for _ in range(PLANS)
    ]
    spec = TrainingSpec(
        model=model.name,
        shape=model.to_json(),
        data=str(corpus),
        global_batch=BATCH,
        sequence_length=16,
        steps=10_000,
        learning_rate=3e-4,
        warmup_steps=0,
        router_bias_rate=0.05,
        verify="Full",
    )
    pods = Pods(tmp_path)
    try:
        pods.start("a", gpus=GPUS)
        old: Plan | None = None
        for epoch, plan in enumerate(plans, start=1):
            spots = {(p.node, gpu) for p in old.placement for gpu in p.gpus} if old else set()
            directive = pods.directive(
                epoch,
                plan,
                spec,
                "a",
                reason="join" if old else "start",
                holds=dict.fromkeys(spots, epoch - 1),
                layouts={epoch - 1: old} if old else {},
            )
            pods.change(directive)
            begun = max(rank.step for rank in pods.ranks("a").values())
            pods.pods["a"].wait(
                lambda report, until=begun + STEPS_EACH: any(r.step >= until for r in report.ranks)
            )
            old = plan
        report = pods.pods["a"].report()
    finally:
        pods.close()
    steps = {step.step: step for step in report.steps}
    expected, _ = train(spec, model, len(steps))
    assert sorted(steps) == list(range(len(steps)))
    assert {step.epoch for step in steps.values()} == set(range(1, PLANS + 1))
    worst = max(abs(steps[step].loss - loss) for step, loss in enumerate(expected))
    assert worst <= TOLERANCE, plans
    for epoch in range(2, PLANS + 1):
        found = [switch for switch in report.switches if switch.epoch == epoch]
        before = {switch.state_digest_before for switch in found}
        after = {switch.state_digest_after for switch in found} - {None}
        assert len(before) == 1, "every copy of every piece is the same before the change"
        assert before == after, "and after it"
