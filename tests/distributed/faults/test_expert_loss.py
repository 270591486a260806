"""A rank dies while rows of tokens are on their way: survivors roll forward, no step is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.model.catalogue import find_model
from planner.plans.plan import FilledTemplate, Stage
from tests.distributed.faults.dying import STEP, WAYS
from tests.distributed.pods import Pods, place
from worker.contract import TrainingSpec, resume_of

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(300)]
MODEL = "tiny-mixtral"
SPOTS = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
VICTIM = ("a", 1)
TOLERANCE = 1e-5
STEPS = 10


def spread(ep: int, *micro_batches: int) -> FilledTemplate:
    """Replicas of one stage, over which the experts are spread."""
    layers = find_model(MODEL).layers
    return FilledTemplate(
        (Stage(gpu_type="demo-fast", tp=1, layers=layers, ep=ep, etp=1),), 1, micro_batches
    )


TWICE = place((spread(2, 3, 1, 2, 2),), SPOTS)  # each expert on two ranks, unequal replicas
LEFT = place((spread(1, 3, 3, 2),), [spot for spot in SPOTS if spot != VICTIM])


@pytest.fixture
def spec(corpus: Path) -> TrainingSpec:
    return TrainingSpec(
        model=MODEL,
        data=str(corpus),
        global_batch=8,
        sequence_length=32,
        steps=STEPS,
        learning_rate=5e-5,  # so low that no last bit decides which expert a token visits
        warmup_steps=0,
    )


def halted(pods: Pods) -> list:
    """The reports of the survivors, once all have halted."""
    ranks = []
    for node in ("a", "b"):
        own = [(n, gpu) for n, gpu in SPOTS if n == node and (n, gpu) != VICTIM]
        slots = {gpu for _, gpu in own}
        report = pods.pods[node].wait(
            lambda report, slots=slots: (
                slots <= {rank.slot for rank in report.ranks if rank.phase == "halted"}
            )
        )
        ranks += [rank for rank in report.ranks if rank.phase == "halted"]
    return ranks


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_dies_while_rows_travel_costs_no_step(
    way: str, tmp_path: Path, spec: TrainingSpec
) -> None:
    from worker.engine.reference.training import train

    deaths = tmp_path / "deaths"
    deaths.mkdir()
    (deaths / ".".join(map(str, VICTIM))).write_text(way)
    environment = {"HEDDLE_TEST_DEATHS": str(deaths)}
    pods = Pods(tmp_path, rank_entry="tests.distributed.faults.dying:main", environment=environment)
    try:
        pods.start("a", "b", gpus=2)
        pods.change(pods.directive(1, TWICE, spec, "b", reason="start"))
        resume = resume_of(halted(pods))
        assert resume is not None
        holds = {spot: 1 for spot in SPOTS if spot != VICTIM}
        how = {"reason": "loss", "holds": holds, "layouts": {1: TWICE}, "resume": resume}
        pods.change(pods.directive(2, LEFT, spec, "b", **how))
        for name in ("a", "b"):
            pods.pods[name].wait(lambda report: all(rank.phase == "done" for rank in report.ranks))
        rows = {row.step: row for pod in pods.pods.values() for row in pod.report().steps}
        assert sorted(rows) == list(range(STEPS))
        assert {rows[STEP - 1].epoch, rows[STEP].epoch} == {1, 2}
        expected, _ = train(spec, find_model(MODEL), STEPS)
        assert max(abs(rows[i].loss - loss) for i, loss in enumerate(expected)) <= TOLERANCE
    finally:
        pods.close()
