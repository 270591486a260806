"""heddle/commands/train.py: a mistake ends before anything starts; --check starts nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle.commands import train as command
from heddle.commands.train import MOST_RANKS, exit_status, train
from heddle.train.choices import TrainOptions, choose
from heddle.train.preconditions.checkpoint_folder import CheckpointFolder
from heddle.train.script import MOST_GPUS
from heddle_operator.apis.errors import InvalidJob
from tests.unit.heddle.train.preconditions.test_beginning import saved
from tests.unit.heddle.train.test_choices import MACHINE, job_file
from tests.unit.worker.data.texts import write_pair
from worker.checkpoint.attempts import Attempt
from worker.device.gpus import Nvml
from worker.weights.run_record import RunRecord

EXAMPLE = str(Path(__file__).parents[4] / "manifests" / "examples" / "tiny.yaml")


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    """What should have been refused ends here, instead of training."""

    def start(*_, **__):
        raise AssertionError("a run started")

    monkeypatch.setattr(command, "_train", start)


def invoked(*arguments):
    return CliRunner().invoke(train, arguments)


def test_a_job_without_mistakes_says_what_it_would_do(tmp_path):
    done = invoked("--check", EXAMPLE, "--ranks", "3", "--output-path", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "nothing is wrong; it would train 200 steps with 3 ranks on cpu-" in done.output


def test_a_job_may_come_from_standard_input_and_nodes_too_but_not_both():
    job, nodes = Path(EXAMPLE).read_text(), "[{name: a, type: cpu, gpus: 3}]"
    runner = CliRunner()
    done = runner.invoke(train, ["--check", "-"], input=job)
    assert done.exit_code == 0, done.output
    done = runner.invoke(train, ["--check", EXAMPLE, "--nodes", "-"], input=nodes)
    assert "200 steps with 3 ranks" in done.output
    error = runner.invoke(train, ["--check", "-", "--nodes", "-"], input=job).exception
    assert (error.field, error.code) == ("--nodes", "Contradiction")


def test_an_output_folder_whose_name_is_not_utf_8_is_refused():
    done = invoked("--check", EXAMPLE, "--output-path", os.fsdecode(b"caf\xe9"))
    assert [mistake.code for mistake in done.exception.mistakes] == ["Unwritable"]


def test_more_ranks_than_a_machine_runs_are_refused_by_the_option_whose_help_says_so():
    assert MOST_RANKS == MOST_GPUS
    done = invoked("--check", EXAMPLE, "--ranks", str(MOST_RANKS + 1))
    assert done.exit_code == 2
    assert "--ranks" in done.output
    assert f"<={MOST_RANKS}]" in invoked("--help").output


def test_mistakes_are_a_line_each_and_in_json_a_list(tmp_path):
    bad = tmp_path / "job.yaml"
    bad.write_text(Path(EXAMPLE).read_text().replace("steps: 200", "steps: 0\n  colour: blue"))
    error = invoked("--check", str(bad)).exception
    assert isinstance(error, InvalidJob)
    assert len(str(error).splitlines()) == 2
    done = invoked("--check", str(bad), "--output", "json")
    assert done.exit_code == 2
    found = json.loads(done.output)["mistakes"]
    assert [(each["field"], each["code"]) for each in found] == [
        (mistake.field, mistake.code) for mistake in error.mistakes
    ]
    assert {"spec.steps", "spec.colour"} == {each["field"] for each in found}
    assert [each["message"] for each in found] == str(error).splitlines()


@pytest.mark.skipif(Nvml().version() is not None, reason="this machine has an NVIDIA driver")
def test_without_a_driver_cuda_is_refused_in_one_sentence(tmp_path):
    error = invoked(EXAMPLE, "--device", "cuda", "--output-path", str(tmp_path)).exception
    (line,) = str(error).splitlines()
    assert line.startswith("--device cuda: ")


def test_keys_need_a_terminal():
    assert "standard input must be a terminal" in invoked(EXAMPLE, "--interactive").output


def test_a_job_that_cannot_be_read_is_all_that_is_said(tmp_path):
    done = invoked(str(tmp_path / "missing.yaml"))
    assert done.output == ""
    assert "cannot be read: No such file" in str(done.exception)


def test_the_first_line_says_what_ctrl_c_does(tmp_path):
    done = invoked(EXAMPLE, "--output-path", str(tmp_path))
    assert done.output.startswith(f"heddle train {EXAMPLE}: Ctrl-C saves a checkpoint")
    assert isinstance(done.exception, AssertionError)  # it would have started


@pytest.mark.parametrize("option", ["--check", "--fresh", "--headless"])
def test_checkpoints_that_another_run_saves_are_neither_shared_nor_removed(tmp_path, option):
    job, saves = tmp_path / "job.yaml", tmp_path / "saves"
    saved = saves / "tiny" / "step-3.e1" / "manifest.json"
    job.write_text(Path(EXAMPLE).read_text() + f"  checkpoint: {{path: {saves}}}\n")
    record = RunRecord(run="one", job="tiny", host=os.uname().nodename, pid=os.getpid())
    with contextlib.closing(CheckpointFolder(str(saves / "tiny"), record)):
        saved.parent.mkdir()
        saved.touch()
        error = invoked(str(job), option, "--output-path", str(tmp_path / "other")).exception
        assert isinstance(error, InvalidJob)
        assert str(error).startswith(f"checkpoints in {saves}/tiny are saved by process ")
        assert saved.exists()


def test_a_run_in_a_new_folder_names_the_checkpoint_that_it_goes_on_from(tmp_path):
    pair = write_pair(tmp_path / "corpus", [[5, 6, 7, 8] * 500] * 8)
    changes = {"spec__checkpoint": {"path": str(tmp_path / "saves")}, "spec__steps": 20}
    job = str(job_file(tmp_path, spec__data={"path": pair}, **changes))
    saved(choose(Path(job), TrainOptions(), MACHINE), Attempt(1, 8))
    note = (
        f"note: the run goes on from the checkpoint of step 8 in {tmp_path}/saves/tiny and trains "
        "12 steps; --fresh begins anew\n"
    )
    elsewhere = ("--output-path", str(tmp_path / "new"))
    checked = invoked("--check", job, *elsewhere)
    assert note in checked.output
    assert "it would train 12 steps" in checked.output
    told = json.loads(invoked("--check", job, "--output", "json", *elsewhere).stdout)
    assert (told["begun_from_step"], told["steps_left"]) == (8, 12)
    started = invoked(job, *elsewhere)
    assert note in started.output
    assert isinstance(started.exception, AssertionError)  # it would have started
    assert "it would train 20 steps" in invoked("--check", "--fresh", job, *elsewhere).output


def test_a_run_whose_steps_are_all_trained_ends_with_0_whoever_asked_for_its_end():
    for number in (None, signal.SIGINT, signal.SIGTERM):
        assert exit_status("Complete", number) == 0
    assert exit_status("Suspended", signal.SIGINT) == 130
    assert exit_status("Suspended", signal.SIGTERM) == 143
    assert exit_status("Saving", signal.SIGINT) == 130  # the weights were not waited for
