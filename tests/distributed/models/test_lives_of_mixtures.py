"""A mixture of experts learns through a join, a drain, a loss and a suspension, its experts spread.

Real agents and ranks; the plans are given.  Each loss is that of one plain process.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.model.shape import ModelShape
from planner.plans.plan import FilledTemplate, Plan
from tests.distributed.exact.restored import restored
from tests.distributed.pods import Pods, place, template
from tests.families import MIXTURES
from worker.contract import Resume, TrainingSpec, resume_of
from worker.training_settings import Checkpointing

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]
STEPS_EACH = 4
TOLERANCE = 1e-5
A, B, C = ([(node, 0), (node, 1)] for node in "abc")


def spread(text: str, ep: int, etp: int, *micro_batches: int) -> FilledTemplate:
    """Replicas of one stage with unequal micro-batches, over which the experts are spread."""
    plain = template(text, 1, *micro_batches)
    return replace(plain, stages=(replace(plain.stages[0], ep=ep, etp=etp),))


ALONE = place((template("1x4", 2, 4),), A[:1])
JOINED = place((spread("1x4", 2, 1, 2, 1, 1, 1, 2, 1),), [*A, *B, *C])  # EP 2, three copies
DRAINED = place((spread("2x4", 2, 1, 5, 3),), [*A, *B])  # EP 2 across TP groups, two copies
LEFT = place((spread("1x4", 2, 1, 3, 5),), A)  # EP 2, one copy
AGAIN = place((spread("2x4", 1, 1, 8),), A)  # from the checkpoint: each expert whole on both


def spots(plan: Plan) -> list[tuple[str, int]]:
    return [(placed.node, gpu) for placed in plan.placement for gpu in placed.gpus]


def trains_on(pods: Pods) -> None:
    """Wait until some steps more are done."""
    pod = pods.pods["a"]
    begun = max(rank.step for rank in pods.ranks("a").values())
    pod.wait(lambda report: any(r.step >= begun + STEPS_EACH for r in report.ranks))


def loses(pods: Pods, node: str) -> Resume:
    """Kill a node, and wait until all others have halted."""
    pods.kill(node)
    report = pods.pods["a"].wait(
        lambda report: {rank.slot for rank in report.ranks if rank.phase == "halted"} == {0, 1}
    )
    found = resume_of(report.ranks)
    assert found is not None
    return found


def suspends(pods: Pods) -> None:
    pods.pods["a"].request("PUT", "/v1/suspend", b"{}")
    pods.pods["a"].wait(lambda report: {rank.phase for rank in report.ranks} == {"suspended"})


def rows_of(pods: Pods) -> dict[int, tuple[int, float]]:
    """{step: its epoch and its loss}, as the living pods tell it."""
    reports = [pod.report() for pod in pods.pods.values()]
    return {row.step: (row.epoch, row.loss) for report in reports for row in report.steps}


def lives(folder: Path, spec: TrainingSpec) -> dict[int, tuple[int, float]]:
    """From the start to the suspension."""
    pods = Pods(folder)
    try:
        pods.start("a", gpus=2)
        pods.change(pods.directive(1, ALONE, spec, "a", reason="start"))
        trains_on(pods)
        pods.start("b", "c", gpus=2)
        how = {"holds": dict.fromkeys(spots(ALONE), 1), "layouts": {1: ALONE}}
        pods.change(pods.directive(2, JOINED, spec, "a", reason="join", **how))
        trains_on(pods)
        how = {"holds": dict.fromkeys(spots(JOINED), 2), "layouts": {2: JOINED}}
        pods.change(pods.directive(3, DRAINED, spec, "a", reason="drain", **how))
        trains_on(pods)
        resume = loses(pods, "b")
        how = {"holds": dict.fromkeys(A, 3), "layouts": {3: DRAINED}, "resume": resume}
        pods.change(pods.directive(4, LEFT, spec, "a", reason="loss", **how))
        trains_on(pods)
        suspends(pods)
        return rows_of(pods)
    finally:
        pods.close()


def goes_on(folder: Path, spec: TrainingSpec, vault: Path) -> dict[int, tuple[int, float]]:
    """From the checkpoint of the suspension."""
    pods = Pods(folder)
    try:
        pods.start("a", gpus=2)
        pods.change(restored(pods.directive(5, AGAIN, spec, "a", reason="start"), vault))
        trains_on(pods)
        return rows_of(pods)
    finally:
        pods.close()


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe", "deepseek-v3"])
def test_a_mixture_learns_through_a_join_a_drain_a_loss_and_a_suspension(
    name: str, tmp_path: Path, corpus: Path
) -> None:
    from worker.engine.reference.training import train

    model: ModelShape = MIXTURES[name]
    spec = TrainingSpec(
        model=name,
        shape=model.to_json(),
        data=str(corpus),
        global_batch=8,
        sequence_length=16,
        steps=10_000,
        learning_rate=3e-4,
        warmup_steps=0,
        router_bias_rate=0.05,
        verify="Full",
        checkpoint=Checkpointing(path=str(tmp_path / "vault")),
    )
    for part in ("before", "after"):
        (tmp_path / part).mkdir()
    before = lives(tmp_path / "before", spec)
    after = goes_on(tmp_path / "after", spec, tmp_path / "vault")
    assert {epoch for epoch, _ in before.values()} == {1, 2, 3, 4}
    assert {epoch for epoch, _ in after.values()} == {5}
    assert min(after) == max(before) + 1, "the suspension loses no step"
    losses = [loss for _, (_, loss) in sorted({**before, **after}.items())]
    assert len(losses) == max(after) + 1, "each step is there once"
    expected, _ = train(spec, model, len(losses))
    assert max(abs(one - other) for one, other in zip(losses, expected, strict=True)) <= TOLERANCE
    assert sum(losses[:3]) > sum(losses[-3:]), "it learns"
