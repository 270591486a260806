"""checkpoint/clearing.py: a run removes its own old checkpoints, and those of no other run."""

from __future__ import annotations

import pytest

from tests.builders import MOE, tiled
from tests.checkpoints import of_a_job, save, state
from tests.fakes.vault import MemoryVault
from worker.checkpoint.attempts import Attempt, complete, objects_of
from worker.checkpoint.clearing import Clearing, Retention

PLAN = tiled("2x3")


def saved(vault, epoch, step, run, loss=None):
    known = of_a_job(MOE, step, run=run).model_copy(update={"held_out_loss": loss})
    assert save(vault, Attempt(epoch, step), PLAN, state(MOE, step), known) is not None


def left(vault):
    return [str(attempt) for attempt in complete(vault.names())]


@pytest.mark.parametrize("run", ["mine", None])
def test_checkpoints_of_another_run_stay_and_take_no_place(run):
    vault = MemoryVault()
    for epoch, step, saver in ((1, 10, "other"), (2, 20, run), (2, 30, run), (3, 40, "other")):
        saved(vault, epoch, step, saver)
    Clearing(Retention(last=1, run=run)).clear(vault)
    kept = ["step-40.e3", "step-30.e2", "step-10.e1"] if run else ["step-40.e3"]
    assert left(vault) == kept


def test_the_best_is_one_of_the_run():
    vault = MemoryVault()
    for epoch, step, run, loss in ((1, 10, "other", 0.5), (2, 20, "mine", 1.0), (2, 30, "mine", 2)):
        saved(vault, epoch, step, run, loss)
    clearing = Clearing(Retention(last=1, best=True, run="mine"))
    clearing.clear(vault)
    assert (clearing.best.step, clearing.best.held_out_loss) == (20, 1.0)
    assert left(vault) == ["step-30.e2", "step-20.e2", "step-10.e1"]


def test_half_a_save_goes_if_it_is_of_an_epoch_of_the_run():
    vault = MemoryVault()
    for epoch, step in ((1, 10), (2, 20), (3, 30)):
        saved(vault, epoch, step, "mine")
    for attempt in (Attempt(1, 10), Attempt(2, 20)):
        vault.remove(attempt.manifest)
    Clearing(Retention(last=1, run="mine", epochs_before=1)).clear(vault)
    assert list(objects_of(vault.names())) == [Attempt(1, 10), Attempt(3, 30)]
