"""One job through random irregular plans, several changes in a row: exact, and every copy equal."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from planner.model.catalogue import find_model
from planner.plans.plan import FilledTemplate, Plan
from tests.distributed.pods import Pods, place, template
from worker.contract import TrainingSpec

pytestmark = pytest.mark.slow
GPUS, LAYERS, BATCH = 6, 6, 8
PLANS = 5
STEPS_EACH = 4
TOLERANCE = 1e-5  # as in test_exact_training


def random_plan(choose: random.Random) -> Plan:
    """One to three templates of depth 1 to 4 and TP 1, 2 or 4, on any of the GPUs."""
    stages: list[list[int]] = []
    free = GPUS
    for _ in range(choose.randint(1, 3)):
        degrees = []
        for _ in range(choose.randint(1, 4)):
            fitting = [tp for tp in (1, 2, 4) if tp <= free]
            if not fitting:
                break
            degrees.append(choose.choice(fitting))
            free -= degrees[-1]
        if degrees:
            stages.append(degrees)
    shares = _parts(choose, BATCH, len(stages))
    templates = tuple(
        _filled(choose, degrees, share) for degrees, share in zip(stages, shares, strict=True)
    )
    gpus = choose.sample(range(GPUS), sum(map(sum, stages)))
    return place(templates, [("a", gpu) for gpu in gpus])


def _filled(choose: random.Random, degrees: list[int], samples: int) -> FilledTemplate:
    layers = _parts(choose, LAYERS, len(degrees))
    micro_batch = choose.choice([size for size in (1, 2, 4) if samples % size == 0])
    text = "+".join(f"{tp}x{count}" for tp, count in zip(degrees, layers, strict=True))
    return template(text, micro_batch, samples // micro_batch)


def _parts(choose: random.Random, whole: int, count: int) -> list[int]:
    """`count` numbers of at least 1 that sum to `whole`."""
    cuts = sorted(choose.sample(range(1, whole), count - 1))
    return [stop - start for start, stop in zip([0, *cuts], [*cuts, whole], strict=True)]


@pytest.mark.parametrize("seed", [1, 2])
def test_random_plans_in_a_row_are_exact(seed: int, tmp_path: Path, corpus: Path) -> None:
    from worker.engine.reference import train

    choose = random.Random(seed)
    plans = [random_plan(choose) for _ in range(PLANS)]
    spec = TrainingSpec(
        model="tiny-llama",
        data=str(corpus),
        global_batch=BATCH,
        sequence_length=16,
        steps=10_000,
        learning_rate=3e-4,
        warmup_steps=0,
        verify="full",
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
    expected, _ = train(spec, find_model(spec.model), len(steps))
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
