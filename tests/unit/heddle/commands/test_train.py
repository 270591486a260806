"""heddle/commands/train.py: a mistake ends before anything starts; --check starts nothing."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle.commands import train as command
from heddle.commands.train import MOST_RANKS, train
from heddle.train.preconditions.checkpoint_folder import CheckpointFolder
from heddle.train.script import MOST_GPUS
from heddle_operator.apis.errors import InvalidJob
from worker.device.gpus import Nvml
from worker.weights.run_record import RunRecord

EXAMPLE = str(Path(__file__).parents[4] / "manifests" / "examples" / "tiny.yaml")


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    """What should have been refused ends here, instead of training."""

    def start(*_):
        raise AssertionError("a run started")

    monkeypatch.setattr(command, "_train", start)


def invoked(*arguments):
    return CliRunner().invoke(train, arguments)


def test_a_job_without_mistakes_says_what_it_would_do(tmp_path):
    done = invoked("--check", EXAMPLE, "--ranks", "3", "--output-path", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "nothing is wrong; it would train 200 steps with 3 ranks on cpu-" in done.output


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
    assert len(json.loads(done.output)["mistakes"]) == 2


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
