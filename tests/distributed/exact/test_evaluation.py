"""Held-out loss and masked training loss are those of one plain process, whatever the plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from planner.model.catalogue import find_model
from planner.plans.plan import FilledTemplate, Plan
from tests.distributed.pods import Pods, place, template
from worker.checkpoint.attempts import complete
from worker.checkpoint.manifest import Manifest
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.contract import Report, TrainingSpec
from worker.data.dataset import Dataset
from worker.data.held_out import SEED
from worker.data.making.prepare import prepare
from worker.data.making.readers import Keys
from worker.training_settings import IGNORED

pytestmark = pytest.mark.slow
BATCH, STEPS, EVERY, SAMPLES = 8, 9, 3, 13
TOLERANCE = 1e-5  # as in test_exact_training
A = place(  # the shares of 13 samples are no whole micro-batches of 2
    (template("2x4+1x2", 2, 3), template("1x6", 1, 2)), [("a", 0), ("a", 1), ("a", 2), ("a", 3)]
)
B = place((template("1x2+1x2+2x2", 4, 2),), [("a", 1), ("a", 0), ("a", 3), ("a", 2)])


def spread(text: str, micro_batch: int, *counts: int) -> FilledTemplate:
    """A template whose stages have whole experts on two GPUs each."""
    plain = template(text, micro_batch, *counts)
    return replace(plain, stages=tuple(replace(one, ep=2, etp=1) for one in plain.stages))


# Replicas in lock-step: one has an empty micro-batch in each step, and in an evaluation too.
SPREAD_A = place(
    (spread("1x4", 2, 2, 1), spread("2x4", 1, 2)), [("a", gpu) for gpu in (0, 1, 2, 3)]
)
SPREAD_B = place((spread("1x2+1x2", 2, 3, 1),), [("a", gpu) for gpu in (3, 1, 0, 2)])
PLANS = {"tiny-llama": (A, B), "tiny-mixtral": (SPREAD_A, SPREAD_B)}


@pytest.fixture(
    scope="module",
    params=["tiny-llama", pytest.param("tiny-mixtral", marks=pytest.mark.system)],
)
def spec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainingSpec:
    """Questions and answers of the lines of a module; only answers are learnt."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = Path(json.decoder.__file__).read_text().splitlines()
    pairs = [{"q": line[: len(line) // 2], "a": line[len(line) // 2 :]} for line in lines if line]
    (folder / "x.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    prepare([folder / "x.jsonl"], folder / "text", keys=Keys(prompt="q", completion="a"))
    return TrainingSpec.model_validate(
        {
            "model": request.param,
            "data": {"blend": [{"path": str(folder / "text")}], "split": (8, 2, 0)},
            "global_batch": BATCH,
            "sequence_length": 16,
            "steps": STEPS,
            "learning_rate": 3e-4,
            "warmup_steps": 0,
            "evaluate_every": EVERY,
            "evaluate_samples": SAMPLES,
            "checkpoint": {"path": str(folder / "saves"), "keep_last": 1, "keep_best": True},
        }
    )


@pytest.fixture(scope="module")
def report(spec: TrainingSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Report]:
    """What is told of a run that changes from A to B after some steps."""
    pods = Pods(tmp_path_factory.mktemp("evaluation"))
    try:
        pods.start("a", gpus=4)
        old: Plan | None = None
        for epoch, plan in enumerate(PLANS[spec.model], start=1):
            spots = {(p.node, gpu) for p in old.placement for gpu in p.gpus} if old else set()
            directive = pods.directive(
                epoch, plan, spec, "a",
                reason="join" if old else "start",
                holds=dict.fromkeys(spots, epoch - 1),
                layouts={epoch - 1: old} if old else {},
            )  # fmt: skip
            pods.change(directive)
            old = plan
        pods.pods["a"].wait(lambda report: all(rank.phase == "done" for rank in report.ranks))
        yield pods.pods["a"].report()
    finally:
        pods.close()


def expected(spec: TrainingSpec) -> tuple[list[float], dict[int, float]]:
    """(losses by step, held-out losses by completed steps) of one process of plain torch."""
    from worker.engine.reference.forward import forward
    from worker.engine.reference.training import training

    model = find_model(spec.model)
    held_out = Dataset(spec.data, spec.sequence_length, model.vocab, "held-out")
    samples = [held_out.sample(SEED, i) for i in range(spec.evaluate_samples or 0)]
    tokens = torch.tensor([sample.tokens[:-1].tolist() for sample in samples])
    labels = torch.tensor([sample.labels.tolist() for sample in samples])
    losses: list[float] = []
    evaluated: dict[int, float] = {}
    for step, (loss, weights) in enumerate(training(spec, model), start=1):
        losses.append(loss)
        if step % EVERY == 0:
            with torch.no_grad():
                logits = forward(model, weights, tokens)
            evaluated[step] = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED
            ).item()
        if step == spec.steps:
            return losses, evaluated
    raise AssertionError


def test_masked_training_and_held_out_losses_are_exact(spec: TrainingSpec, report: Report) -> None:
    losses, evaluated = expected(spec)
    found = {record.step: record.loss for record in report.steps}
    assert max(abs(found[step] - loss) for step, loss in enumerate(losses)) <= TOLERANCE
    told = {record.step: record.loss for record in report.evaluations}
    assert sorted(told) == [0, *range(EVERY, STEPS + 1, EVERY)]
    assert max(abs(told[step] - loss) for step, loss in evaluated.items()) <= TOLERANCE
    assert {record.samples for record in report.evaluations} == {SAMPLES}


def test_what_is_saved_is_the_best_and_has_the_loss_that_was_told(
    spec: TrainingSpec, report: Report
) -> None:
    assert spec.checkpoint is not None
    vault = FolderVault(Path(spec.checkpoint.path))
    told = {record.step: record.loss for record in report.evaluations}
    saves = sorted(
        (save for save in report.saves if (save.rank, save.outcome) == (0, "saved")),
        key=lambda save: save.step,
    )
    assert saves[0].step == EVERY  # a later one may be late
    losses = [save.held_out_loss for save in saves]
    assert losses == [told[save.step] for save in saves]
    assert losses == sorted(losses, reverse=True)
    best = saves[-1].best
    assert best is not None
    assert best.held_out_loss == min(losses)
    (newest,) = complete(vault.names())
    assert newest == (best.epoch, best.step) == (saves[-1].epoch, saves[-1].step)
    assert Manifest.from_bytes(vault.read(newest.manifest)).held_out_loss == losses[-1]


def test_both_plans_trained_and_evaluated(report: Report) -> None:
    assert {record.epoch for record in report.steps} == {1, 2}
    assert len({record.epoch for record in report.evaluations}) == 2


def test_a_replica_without_a_held_out_sample_adds_nothing(
    spec: TrainingSpec, tmp_path: Path
) -> None:
    """The last of them has the only sample; all others of a template in lock-step have none."""
    changes = {"evaluate_samples": 1, "steps": EVERY, "checkpoint": None}
    spec = spec.model_copy(update={**changes, "sequence_length": 64})  # a question and an answer
    pods = Pods(tmp_path)
    try:
        pods.start("a", gpus=4)
        pods.change(pods.directive(1, PLANS[spec.model][0], spec, "a", reason="start"))
        report = pods.pods["a"].wait(
            lambda report: (
                len(report.evaluations) == 2 or any(rank.phase == "halted" for rank in report.ranks)
            )
        )
    finally:
        pods.close()
    _, evaluated = expected(spec)
    told = {record.step: record.loss for record in report.evaluations}
    assert sorted(told) == [0, EVERY]
    assert abs(told[EVERY] - evaluated[EVERY]) <= TOLERANCE


def test_an_evaluation_disturbs_nothing(spec: TrainingSpec) -> None:
    """The reference never does, and its losses are the same."""
    labels = [Dataset(spec.data, 16).count_labels(1, i, i + 1) for i in range(BATCH)]
    assert len(set(labels)) > 2  # replicas have unlike numbers of labels, or this proves nothing
