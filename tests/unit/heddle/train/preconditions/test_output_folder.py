"""train/preconditions/output_folder.py: a folder is one run's, and a user's files stay."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from heddle.commands.weights import weights
from heddle.train.preconditions.output_folder import OutputFolder, look
from heddle_operator.apis.errors import InvalidJob
from tests.refusals import refused
from tests.unit.heddle.commands.test_weights import TINY, leave_parts
from worker.agent.measuring.measurements import Measurements
from worker.agent.records import Records
from worker.step_record import StepRecord
from worker.weights.run_record import RECORD, RunRecord

HOST = os.uname().nodename
HOLDS = """
import sys
from pathlib import Path
from heddle.train.preconditions.output_folder import OutputFolder
from worker.weights.run_record import RunRecord
record = RunRecord(run="one", job="tiny", host={host!r}, pid={pid})
held = OutputFolder(Path(sys.argv[1]), record, False)
print("held", flush=True)
sys.stdin.read()
"""


def record(run="two", **about):
    return RunRecord(**{"run": run, "job": "tiny", "host": HOST, "pid": os.getpid()} | about)


def refusal(folder, is_fresh=False):
    with pytest.raises(InvalidJob) as error:
        OutputFolder(folder, record(), is_fresh)
    assert "\n" not in str(error.value)
    assert look(folder, is_fresh).refusal == str(error.value)
    return str(error.value)


def names(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def finished(folder, **about):
    """What a run leaves: weights, parts of others, measurements and logs, by the real writers."""
    held = OutputFolder(folder, record("one", **about), False)
    leave_parts(folder, TINY, ["1x6"])
    weights.main(["export", str(folder), str(folder / "whole")], standalone_mode=False)
    for path in (folder / "whole").iterdir():
        path.rename(folder / path.name)
    (folder / "whole").rmdir()
    written = Measurements(folder, Records(), "one")
    written.add(StepRecord(epoch=1, step=0, loss=1, gradient_norm=1, start_s=0, end_s=1))
    written.close()
    (folder / "logs").mkdir()
    (folder / "logs" / "tiny-here-0.log").touch()
    held.close()


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS.format(host="far", pid=4711), str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_folder_that_a_process_holds_is_refused_by_its_pid_and_host(tmp_path, holder, is_fresh):
    assert refusal(tmp_path, is_fresh) == (
        f"the output folder {tmp_path} is used by process 4711 of host far, which trains job tiny; "
        "name another folder with --output-path, or wait for its end"
    )


def test_the_lock_of_a_dead_process_is_free(tmp_path):
    program = HOLDS.format(host=HOST, pid=4711)
    command = [sys.executable, "-c", program, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "held\n"
        process.kill()
    held = OutputFolder(tmp_path, record(), False)
    assert held.note == "the output folder is taken over from process 4711, which is dead"
    held.close()


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_run_of_another_host_that_has_not_ended_is_refused_by_name(tmp_path, is_fresh):
    (tmp_path / RECORD).write_text(record("one", host="far", pid=12).to_text())
    assert "process 12 of host far" in refusal(tmp_path, is_fresh)
    (tmp_path / RECORD).write_text(record("one", host="far", has_ended=True).to_text())
    OutputFolder(tmp_path, record(), is_fresh).close()


@contextmanager
def no_room():
    """A disk that takes no byte; what is said meanwhile would be lost."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_at_the_end_leaves_the_record_of_the_run(tmp_path):
    held = OutputFolder(tmp_path, record("one"), False)
    (tmp_path / "measurements").mkdir()
    (tmp_path / "measurements" / "steps-epoch-0001.jsonl").touch()
    before = (tmp_path / RECORD).read_text()
    with no_room():
        held.close()
    assert (tmp_path / RECORD).read_text() == before
    assert look(tmp_path, False, "tiny").goes_on == "one"  # its checkpoint is not lost


def test_a_record_in_place_of_a_longer_one_is_whole(tmp_path):
    OutputFolder(tmp_path, record("a" * 200), False).close()
    held = OutputFolder(tmp_path, record("one"), True)
    assert RunRecord.of_text((tmp_path / RECORD).read_text(), tmp_path) == record("one")
    held.close()
    ended = RunRecord.of_text((tmp_path / RECORD).read_text(), tmp_path)
    assert (ended.run, ended.has_ended) == ("one", True)


def test_a_full_disk_at_the_start_is_one_sentence(tmp_path):
    said = []
    with no_room():
        try:
            OutputFolder(tmp_path, record(), False)
        except InvalidJob as error:
            said.append(error)
    assert [(error.code, "\n" in str(error)) for error in said] == [("Unwritable", False)]


def test_a_job_of_a_cluster_keeps_its_folder(tmp_path):
    (tmp_path / RECORD).write_text(record("uid", host="", pid=0).to_text())
    assert "belongs to job tiny of a cluster" in refusal(tmp_path, is_fresh=True)


def test_a_record_that_is_none_is_one_sentence(tmp_path):
    (tmp_path / RECORD).write_text("[]")
    with refused(InvalidJob, "Taken"):
        look(tmp_path, is_fresh=False)
    with refused(InvalidJob, "Taken"):
        OutputFolder(tmp_path, record(), is_fresh=True)


def test_a_finished_run_is_refused_and_goes_when_a_fresh_one_is_asked_for(tmp_path):
    finished(tmp_path)
    before = names(tmp_path)
    assert {"model.safetensors", "config.json", "logs/tiny-here-0.log"} <= set(before)
    assert "holds files of a run of job tiny" in refusal(tmp_path)
    assert names(tmp_path) == before
    OutputFolder(tmp_path, record(), is_fresh=True).close()
    assert names(tmp_path) == [RECORD]
    assert sorted(p.name for p in tmp_path.iterdir()) == [RECORD, "logs"]


def test_a_users_own_files_stay_whatever_their_names_are(tmp_path):
    own = ("tokenizer.json", "notes.txt", "measurements/mine.csv", "logs/other.log", "config.yaml")
    for name in own:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    if (tmp_path / "logs").is_dir():
        (tmp_path / "logs").rename(tmp_path / "kept")
    finished(tmp_path)
    (tmp_path / "kept" / "other.log").rename(tmp_path / "logs" / "other.log")
    (tmp_path / "kept").rmdir()
    OutputFolder(tmp_path, record(), is_fresh=True).close()
    assert names(tmp_path) == sorted([*own, RECORD])
    assert {(tmp_path / name).read_text() for name in own} == {"mine"}


def test_a_model_that_no_run_wrote_is_never_removed(tmp_path):
    (tmp_path / "model.safetensors").write_text("mine")
    for is_fresh in (False, True):
        assert "which no run is recorded to have written" in refusal(tmp_path, is_fresh)
    assert (tmp_path / "model.safetensors").read_text() == "mine"


def test_measurements_of_an_older_version_have_no_record_and_are_not_mixed_with(tmp_path: Path):
    (tmp_path / "measurements").mkdir()
    (tmp_path / "measurements" / "steps-epoch-0001.jsonl").write_text("{}\n")
    assert "holds files of another run" in refusal(tmp_path)
    OutputFolder(tmp_path, record(), is_fresh=True).close()
    assert names(tmp_path) == [RECORD]


def test_looking_changes_nothing(tmp_path):
    assert look(tmp_path / "new", is_fresh=True).refusal == ""
    assert list(tmp_path.iterdir()) == []
