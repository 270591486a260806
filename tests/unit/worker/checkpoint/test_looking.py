"""checkpoint/looking.py: what a job can go on from, and the last epoch that wrote there."""

from __future__ import annotations

from tests.builders import MOE, tiled
from tests.checkpoints import of_a_job, save, state
from tests.fakes.vault import MemoryVault
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.looking import look
from worker.checkpoint_records import Look
from worker.contract import TrainingSpec

PLAN = tiled("2x3")


def looked(vault):
    spec = TrainingSpec(
        model="tiny-llama", data="text", global_batch=8, sequence_length=16, steps=400
    )
    return look(vault, "/saves", Look(epoch=1, training=spec), lambda: "data")


def test_an_empty_folder_has_no_epoch():
    assert looked(MemoryVault()).newest_epoch == 0


def test_half_a_save_counts_as_its_epoch_and_no_job_goes_on_from_it():
    vault = MemoryVault()
    of_moe = of_a_job(MOE, 10)
    assert save(vault, Attempt(2, 10), PLAN, state(MOE, 10), of_moe) is not None
    assert save(vault, Attempt(5, 20), PLAN, state(MOE, 20), of_moe) is not None
    vault.remove(Attempt(5, 20).manifest)
    found = looked(vault)
    assert [(one.epoch, one.code) for one in found.refused] == [(2, "other")]
    assert found.newest_epoch == 5


def test_a_run_goes_back_to_its_own_saves_or_to_those_before_them():
    vault = MemoryVault()
    for epoch, step, run, batch in (
        (1, 10, "before", 8),
        (2, 20, "mine", 8),
        (3, 30, None, 8),
        (4, 40, "other", 8),
        (5, 50, "other", 4),
    ):
        known = of_a_job(MOE, step, run=run, global_batch=batch)
        assert save(vault, Attempt(epoch, step), PLAN, state(MOE, 10), known) is not None

    def steps(run):
        spec = TrainingSpec(
            model="moe",
            shape=MOE.to_json(),
            data="text",
            steps=400,
            global_batch=8,
            sequence_length=16,
        )
        asked = Look(epoch=1, training=spec, run=run)
        told = look(vault, "/saves", asked, lambda: "data")
        assert told.newest_epoch == 5
        return [one.step for one in told.found], [one.step for one in told.refused]

    assert steps("mine") == ([30, 20, 10], [])
    assert steps(None) == steps("new") == ([40, 30, 20, 10], [50])
