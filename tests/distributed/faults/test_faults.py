"""What is wrong with state or gradients turns a run red; what is wrong before the vote leaves the
old epoch untouched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.model.catalogue import find_model
from tests.distributed.pods import Pods, place, template
from worker.contract import Directive, TrainingSpec

pytestmark = pytest.mark.slow
OLD = place((template("1x6", 2, 2), template("1x3+1x3", 1, 4)), [("a", 0), ("a", 1), ("a", 2)])
NEW = place((template("2x6", 4, 2),), [("a", 1), ("a", 2)])  # moments of other cuts must move
GPUS = [("a", 0), ("a", 1), ("a", 2)]


@pytest.fixture
def pods(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pods]:
    found = Pods(tmp_path, rank_entry=f"tests.distributed.faults.rank_entries:{request.param}")
    try:
        found.start("a")
        yield found
    finally:
        found.close()


def spec(corpus: Path, steps: int) -> TrainingSpec:
    return TrainingSpec(
        model="tiny-llama",
        data=str(corpus),
        global_batch=8,
        sequence_length=32,
        steps=steps,
        learning_rate=3e-4,
        warmup_steps=0,
        verify="Full",
    )


def difference(pods: Pods, training: TrainingSpec) -> float:
    from worker.engine.reference.training import train

    expected, _ = train(training, find_model(training.model), training.steps)
    found = {step.step: step.loss for step in pods.pods["a"].report().steps}
    return max(abs(found[step] - loss) for step, loss in enumerate(expected))


def change(pods: Pods, training: TrainingSpec) -> Directive:
    """Train OLD, prepare NEW, and say switch."""
    pods.change(pods.directive(1, OLD, training, "a", reason="start"))
    pods.pods["a"].wait(lambda report: any(rank.step >= 3 for rank in report.ranks))
    directive = pods.directive(
        2, NEW, training, "a", holds=dict.fromkeys(GPUS, 1), layouts={1: OLD}
    )
    pods.send(directive)
    pods.pods["a"].wait(lambda report: all(rank.pending_epoch == 2 for rank in report.ranks))
    pods.send(directive.model_copy(update={"phase": "switch"}))
    return directive


@pytest.mark.parametrize("pods", ["flip_in_flight"], indirect=True)
def test_a_bit_flipped_in_flight_is_refused_and_the_old_epoch_goes_on(
    pods: Pods, corpus: Path
) -> None:
    training = spec(corpus, 40)
    change(pods, training)
    report = pods.pods["a"].wait(lambda report: all(rank.phase == "done" for rank in report.ranks))
    assert {rank.epoch for rank in report.ranks} == {1}
    assert any("damaged on its way" in (rank.error or "") for rank in report.ranks)
    assert difference(pods, training) <= 1e-5


@pytest.mark.parametrize("pods", ["flip_after_vote"], indirect=True)
def test_a_bit_of_a_moved_moment_flipped_after_the_vote_halts_the_job(
    pods: Pods, corpus: Path
) -> None:
    change(pods, spec(corpus, 200))
    report = pods.pods["a"].wait(
        lambda report: any(rank.phase == "halted" for rank in report.ranks)
    )
    assert any(
        "do not hold the same bytes" in (r.error or "") or "digest" in (r.error or "")
        for r in report.ranks
    )
    assert not any(step.epoch == 2 for step in report.steps)


@pytest.mark.parametrize("pods", ["wrong_weight"], indirect=True)
def test_a_replica_with_the_wrong_weight_leaves_the_reference_curve(
    pods: Pods, corpus: Path
) -> None:
    training = spec(corpus, 10)
    pods.change(pods.directive(1, OLD, training, "a", reason="start"))
    pods.pods["a"].wait(lambda report: all(rank.phase == "done" for rank in report.ranks))
    assert difference(pods, training) > 1e-4
