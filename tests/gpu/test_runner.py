"""The runner of the checks of a GPU: no check hides another, and each says what stopped it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.pods import Pods
from tests.gpu.cases import has_failed, tried
from tests.gpu.checks import CHECKS, TWO
from tests.gpu.runner import BUDGET_S, ONE_S, TWO_S, environment, run_all
from worker.device.environment import environment_of
from worker.device.gpus import Nvml

ROOT = Path(__file__).parents[2]
WORK = {
    "hangs": """
import time
from tests.unit.worker.forks import stacks_before_the_end
stacks_before_the_end()
def awaits_the_device():
    time.sleep(600)
awaits_the_device()
""",
    "dies": "import os, sys; sys.stderr.write('RuntimeError: no kernel'); os._exit(3)",
    "talks": """
print('a line of some library')
print('{"ok": true, "figure": 1.5, "seconds": {"of a move": 1}}')
""",
    "fails": 'print(\'{"ok": false, "error": "ValueError: odd"}\'); raise SystemExit(1)',
}


def ran(out, checks, **rest):
    return run_all(
        checks,
        "dry",
        out,
        command=lambda name: [sys.executable, "-c", WORK[name]],
        **rest,
    )


@pytest.mark.slow
def test_a_check_that_hangs_or_dies_leaves_its_stacks_and_the_next_ones_run(tmp_path, capfd):
    lines = ran(tmp_path, {"hangs": 4.0, "dies": 30.0, "fails": 30.0, "talks": 30.0})
    found = {line["check"]: (line["ok"], line.get("error", "")) for line in lines}
    assert found["hangs"] == (False, "it did not end within 4 s; its stacks are in the log")
    assert found["dies"] == (False, "its process ended with 3")
    assert found["fails"] == (False, "ValueError: odd")
    assert found["talks"] == (True, "")
    assert lines[3]["figure"] == 1.5
    assert lines[3]["seconds"] == {"of a move": 1}  # not the runner's own
    log = (tmp_path / "gpu.log").read_text()
    assert "awaits_the_device" in log
    assert "no kernel" in log
    assert lines[1]["said"] == ["RuntimeError: no kernel"]
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == lines
    # however many checks there are
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.jsonl", "gpu.log"]


@pytest.mark.slow
def test_a_check_for_which_no_time_is_left_is_named_and_is_no_failure(tmp_path):
    lines = ran(tmp_path, {"hangs": 2.0, "talks": 30.0}, budget_s=2.5)
    assert [line["ok"] for line in lines] == [False, None]
    assert lines[1]["left_out"] == "no time is left"


@pytest.mark.slow
@pytest.mark.skipif(Nvml().version() is not None, reason="this machine has an NVIDIA driver")
def test_without_a_gpu_the_script_refuses_in_one_sentence(tmp_path):
    done = subprocess.run(
        [str(ROOT / "tests" / "gpu" / "run.sh")],
        env={**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "--dry" in done.stderr


def test_every_check_has_a_limit_and_they_come_in_one_order():
    assert list(ONE_S) == list(CHECKS)
    assert list(TWO_S) == list(TWO)
    assert BUDGET_S < 600


def test_a_check_has_the_variables_that_an_agent_gives_a_rank_on_a_gpu():
    given = environment("cuda")
    named = {**environment_of("cuda"), "CUDA_MODULE_LOADING": "LAZY", "DS_ACCELERATOR": "cpu"}
    assert named.items() <= given.items()


def test_the_error_of_a_case_stands_in_its_place():
    found = tried("one", lambda: 1) | tried("other", lambda: 1 / 0)
    assert found == {"one": 1, "other": {"error": "ZeroDivisionError: division by zero"}}
    assert [has_failed(one) for one in (found, {}, {"one": {"apart": 0.0}})] == [True, True, False]


def test_agents_of_a_check_import_what_was_carried(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/carried/wheels")
    given = Pods(tmp_path).environment["PYTHONPATH"].split(os.pathsep)
    assert given == [str(ROOT), "/carried/wheels"]
