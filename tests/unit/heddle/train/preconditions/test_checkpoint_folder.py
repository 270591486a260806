"""train/preconditions/checkpoint_folder.py: one run at a time saves into a folder."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from heddle.train.preconditions.checkpoint_folder import LOCK, CheckpointFolder, why_taken
from heddle_operator.apis.errors import InvalidJob
from tests.refusals import refused
from worker.checkpoint.listing import NoCheckpoint, open_saved
from worker.checkpoint.vaults.open_vault import open_vault
from worker.weights.run_record import RunRecord

HOST = os.uname().nodename
HOLDS = """
import sys
from heddle.train.preconditions.checkpoint_folder import CheckpointFolder
from worker.weights.run_record import RunRecord
held = CheckpointFolder(sys.argv[1], RunRecord(run="one", job="tiny", host={host!r}, pid=4711))
print("held", flush=True)
sys.stdin.read()
"""


def record(run="two", **about):
    return RunRecord(**{"run": run, "job": "tiny", "host": HOST, "pid": os.getpid()} | about)


def refusal(folder):
    with pytest.raises(InvalidJob) as error:
        CheckpointFolder(str(folder), record())
    assert error.value.code == "Taken"
    assert why_taken(str(folder)) == str(error.value)
    return str(error.value)


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS.format(host="far"), str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_folder_that_a_living_run_holds_is_refused_by_its_pid_and_host(tmp_path, holder):
    said = refusal(tmp_path)
    assert said == (
        f"checkpoints in {tmp_path} are saved by process 4711 of host far, which trains job tiny; "
        "name another spec.checkpoint.path, or wait for its end"
    )
    holder.kill()
    holder.wait()
    (tmp_path / LOCK).write_text(record("one", has_ended=False).to_text())
    CheckpointFolder(str(tmp_path), record()).close()  # the lock of a dead process is free


def test_a_run_of_another_host_that_has_not_ended_is_refused_by_name(tmp_path):
    (tmp_path / LOCK).write_text(record("one", host="far", pid=12).to_text())
    assert refusal(tmp_path).endswith(
        "are saved by process 12 of host far, unseen from here; name another spec.checkpoint.path, "
        f"or remove {tmp_path / LOCK} if it is dead"
    )
    (tmp_path / LOCK).write_text(record("one", host="far", has_ended=True).to_text())
    CheckpointFolder(str(tmp_path), record()).close()


def test_the_lock_is_no_object_of_a_listing_and_outlives_a_tidying(tmp_path):
    held = CheckpointFolder(f"file://{tmp_path}/tiny", record())
    vault = open_vault(str(tmp_path / "tiny"))
    assert vault.names() == ()
    vault.put("step-1.e1/rank-0.safetensors", [b"x"], 1)
    vault.remove("step-1.e1/rank-0.safetensors")
    vault.tidy(-60.0)
    assert "are saved by process" in why_taken(str(tmp_path / "tiny"))
    held.close()
    with refused(NoCheckpoint, "empty"):
        open_saved(str(tmp_path / "tiny"))


def test_a_store_at_a_url_has_no_lock():
    assert why_taken("s3://bucket/saves/tiny") == ""
    CheckpointFolder("s3://bucket/saves/tiny", record()).close()


def test_a_folder_that_cannot_be_locked_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with refused(InvalidJob, "Unwritable"):
        CheckpointFolder(str(tmp_path / "file" / "tiny"), record())
    (tmp_path / LOCK).write_text("[]")
    with refused(InvalidJob, "Taken"):
        why_taken(str(tmp_path))
