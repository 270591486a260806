"""A job saves while it trains; pods that hold nothing go on from it under another plan."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from planner.model.catalogue import find_model
from tests.distributed.pods import Pods, place, template
from worker.checkpoint.attempts import Attempt, complete
from worker.checkpoint.load import Newest, newest
from worker.checkpoint.manifest import digest_of
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.contract import Restore, TrainingSpec
from worker.training_settings import Checkpointing

pytestmark = pytest.mark.slow
STEPS, EVERY = 20, 8  # one save a run, so that none is late
LIMIT_S = 60.0
TOLERANCE = 1e-5  # as in test_random_plans.py
A = place(
    (template("2x4+1x2", 1, 6), template("1x6", 2, 1)), [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
)
B = place((template("1x3+1x3", 2, 3, 1),), [("a", 0), ("b", 0), ("a", 1), ("b", 1)])


def vault_of(spec: TrainingSpec) -> FolderVault:
    assert spec.checkpoint is not None
    return FolderVault(Path(spec.checkpoint.path))


def await_(vault: FolderVault, attempt: Attempt) -> None:
    """Wait until a checkpoint is whole."""
    until_s = time.monotonic() + LIMIT_S
    while attempt not in complete(vault.names()):
        assert time.monotonic() < until_s, f"{attempt} is not whole"
        time.sleep(0.05)


def trained(folder: Path, spec: TrainingSpec, epoch: int, plan, restore: Restore | None = None):
    """{step: its loss} of one epoch of pods that are made for it."""
    folder.mkdir()
    pods = Pods(folder)
    try:
        pods.start("a", "b")
        pods.change(pods.directive(epoch, plan, spec, "a", reason="start", restore=restore))
        pods.pods["a"].wait(lambda report: all(rank.phase == "done" for rank in report.ranks))
        reports = [pod.report() for pod in pods.pods.values()]
        last = Attempt(epoch, spec.steps // EVERY * EVERY)
        await_(vault_of(spec), last)  # ranks that are done still write
        return {step.step: step.loss for report in reports for step in report.steps}
    finally:
        pods.close()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, corpus: Path):
    """(settings, losses before the loss of all pods, losses after it, the vault)."""
    folder = tmp_path_factory.mktemp("saves")
    vault = FolderVault(folder / "vault")
    spec = TrainingSpec(
        model="tiny-llama",
        data=str(corpus),
        global_batch=8,
        sequence_length=32,
        steps=STEPS // 2 + 1,
        learning_rate=3e-4,
        warmup_steps=0,
        checkpoint=Checkpointing(path=str(folder / "vault"), every_steps=EVERY),
    )
    before = trained(folder / "before", spec, 1, A)
    saved = newest(vault)
    assert isinstance(saved, Newest)
    restore = Restore(
        path=str(folder / "vault"),
        epoch=saved.attempt.epoch,
        step=saved.attempt.step,
        manifest=digest_of(vault.read(saved.attempt.manifest)),
    )
    longer = spec.model_copy(update={"steps": STEPS})
    return spec, before, trained(folder / "after", longer, 2, B, restore), vault, saved


def test_a_checkpoint_of_the_newest_due_step_is_whole(found):
    assert found[4].attempt == Attempt(epoch=1, step=8)
    assert complete(found[3].names())[0] == Attempt(epoch=2, step=16)


def test_the_job_goes_on_from_its_step_as_one_plain_process_does(found):
    from worker.engine.reference.training import train

    spec, before, after = found[:3]
    assert sorted(after) == list(range(8, STEPS))
    expected, _ = train(spec, find_model(spec.model), STEPS)
    worst = max(abs(after[step] - expected[step]) for step in after)
    assert worst <= TOLERANCE
    assert (
        max(abs(after[step] - before[step]) for step in after.keys() & before.keys()) <= TOLERANCE
    )
