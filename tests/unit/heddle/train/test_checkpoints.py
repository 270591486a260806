"""heddle/train/checkpoints.py: a fresh run finds no checkpoint, and no rest of one."""

from __future__ import annotations

from dataclasses import replace

from heddle.train.checkpoints import (
    begun_from_step,
    failed_save,
    going_on_from,
    has_checkpoint,
    remove_checkpoints,
    saved_here,
)
from heddle.train.recorder import Recorder
from heddle_operator.apis.checkpoint import Checkpoint
from tests.drafts import age, left_by_a_killed_writer
from tests.unit.heddle.train.recorded import JOB, recorded, report
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.contract import Restore, SaveRecord


def job_saving_in(folder):
    spec = JOB.spec.model_copy(update={"checkpoint": Checkpoint(path=str(folder))})
    return JOB.model_copy(update={"spec": spec})


def save(step, outcome, rank=0, error=None):
    return SaveRecord(
        epoch=1, step=step, rank=rank, outcome=outcome, ended_unix_s=step, error=error
    )


def test_a_fresh_run_leaves_neither_a_checkpoint_nor_what_a_dead_writer_left(tmp_path):
    folder, job = tmp_path / JOB.name, job_saving_in(tmp_path)
    draft = left_by_a_killed_writer(folder)
    age(draft)
    FolderVault(folder).commit("step-3.e1/manifest.json", b"{}")
    (folder / "mine.txt").touch()
    assert has_checkpoint(job)
    remove_checkpoints(job)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


def test_a_job_without_a_path_saves_under_its_output_folder(tmp_path):
    assert saved_here(JOB, tmp_path).spec.checkpoint.path == str(tmp_path / "checkpoints")
    job = job_saving_in(tmp_path / "saves")
    assert saved_here(job, tmp_path) == job


def test_a_run_began_from_the_checkpoint_of_its_first_epoch_that_trained():
    found = Recorder()
    assert begun_from_step(found) is None
    for epoch, step in ((1, 24), (2, 16), (3, 20)):  # 24 is damaged, 20 is its own
        found.restores[epoch] = Restore(path="/saves", epoch=1, step=step, manifest="m")
        assert begun_from_step(found) == step  # none of them has trained
    found.steps = {2: {"a": {}}, 3: {"a": {}}}
    assert begun_from_step(found) == 16


def test_a_later_run_goes_on_from_the_newest_save_else_from_what_was_there(tmp_path):
    job, found = job_saving_in(tmp_path), recorded()
    assert going_on_from(job, found) is None
    found = replace(found, begins_at=3)
    assert going_on_from(job, found) == {"folder": f"{tmp_path}/{JOB.name}", "step": 3}
    found.restores[1] = Restore(path=str(tmp_path), epoch=1, step=2, manifest="m")  # 3 is damaged
    assert going_on_from(job, found)["step"] == 2
    told = report("demo-fast-1-0").model_copy(update={"saves": (save(7, "saved"),)})
    found.take_report(told)
    assert going_on_from(job, found)["step"] == 7
    assert going_on_from(job, Recorder()) is None


def test_only_a_failure_after_the_newest_whole_checkpoint_counts():
    failed = save(4, "failed", 1, "the disk is full")
    assert failed_save([save(2, "saved"), failed]) == failed
    assert failed_save([failed, save(4, "given up"), save(6, "saved")]) is None
    assert failed_save([save(4, "late", 1), save(5, "given up")]) is None
