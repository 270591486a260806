"""Runs that lose everything, or are ended and go on, train as one plain process does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from planner.model.catalogue import find_model
from tests.unit.worker.data.lines import prepared_lines
from worker.contract import TrainingSpec

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(400)]
HEDDLE = str(Path(sys.executable).parent / "heddle")
ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-5  # as in test_random_plans.py
TRAINING = {"globalBatch": 32, "sequenceLength": 128, "learningRate": 3e-4, "warmupSteps": 0}
STEPS = 30
NODES = """
- {name: a, type: demo-fast, gpus: 1, speed_factor: 10}
- {name: b, type: demo-fast, gpus: 1, speed_factor: 10}
"""
SCRIPT = """
- {at_step: 12, kill: a}
- {at_step: 12, kill: b}
- {at_step: 12, join: {name: c, type: demo-fast, gpus: 2, speed_factor: 10}}
- {at_step: 22, kill: c}
- {at_step: 22, join: {name: d, type: demo-fast, gpus: 1, speed_factor: 10}}
- {at_step: 22, join: {name: e, type: demo-fast, gpus: 1, speed_factor: 10}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job that saves each fifth step, and its data."""
    made = tmp_path_factory.mktemp("goes-on")
    data = {"path": prepared_lines(made)}
    body = yaml.safe_load((ROOT / "manifests" / "examples" / "tiny.yaml").read_text())
    body["spec"] |= {"steps": STEPS, "data": data, "training": TRAINING}
    body["spec"]["elastic"] = {"joinDebounceSeconds": 0, "cooldownSeconds": 0}
    (made / "job.yaml").write_text(yaml.safe_dump(body))
    body["spec"] |= {"checkpoint": {"path": str(made / "saves"), "interval": {"steps": 5}}}
    (made / "saves.yaml").write_text(yaml.safe_dump(body))
    (made / "nodes.yaml").write_text(NODES)
    (made / "script.yaml").write_text(SCRIPT)
    return made


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[float]:
    """The losses of one plain process."""
    from worker.engine.reference.training import train

    spec = TrainingSpec(
        model="tiny-llama",
        data=prepared_lines(folder),
        global_batch=32,
        sequence_length=128,
        learning_rate=3e-4,
        warmup_steps=0,
        steps=STEPS,
    )
    return train(spec, find_model("tiny-llama"), STEPS)[0]


def command(folder: Path, job: str) -> list[str]:
    named = ["--nodes", str(folder / "nodes.yaml"), "--output-path", str(folder / job)]
    return [HEDDLE, "train", str(folder / f"{job}.yaml"), "--output", "json", *named]


def started(folder: Path, arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
    )


def differences(result: dict, expected: list[float]) -> list[float]:
    first = result["epochs"][0]["first_step"]
    return [abs(a - b) for a, b in zip(result["losses"], expected[first:], strict=False)]


def test_a_job_that_loses_all_nodes_twice_ends_by_itself(folder, expected):
    process = started(folder, [*command(folder, "saves"), "--script", str(folder / "script.yaml")])
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert result["phase"] == "Complete"
    assert [epoch["reason"] for epoch in result["epochs"]] == ["start"] * 3
    firsts = [epoch["first_step"] for epoch in result["epochs"]]
    assert min(firsts[1:]) >= 5
    lasts = [epoch["last_step"] for epoch in result["epochs"]]
    assert all(last + 1 - first <= 2 * 5 for last, first in zip(lasts, firsts[1:], strict=False))
    assert len(result["losses"]) == STEPS
    assert max(differences(result, expected)) <= TOLERANCE


def test_a_run_goes_on_after_ctrl_c_and_begins_anew_with_fresh(folder, expected):
    process = started(folder, command(folder, "job"))
    assert process.stderr is not None
    is_told = False
    for line in process.stderr:
        if f"/{STEPS}  loss" in line and not is_told:
            is_told = True
            process.send_signal(signal.SIGINT)
    result = json.loads(process.stdout.read())
    assert process.wait(60) == 130
    step = result["checkpoint"]["step"]
    assert 0 < step < STEPS

    out, err = started(folder, command(folder, "job")).communicate(timeout=300)
    again = json.loads(out)
    assert again["phase"] == "Complete", err
    assert again["epochs"][0]["first_step"] == step
    assert max(differences(result, expected) + differences(again, expected)) <= TOLERANCE

    out, err = started(folder, [*command(folder, "job"), "--fresh"]).communicate(timeout=300)
    assert json.loads(out)["epochs"][0]["first_step"] == 0, err
