"""docs/checkpoints.md runs as it is written, on checkpoints of the steps that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from heddle.main import heddle
from planner.model.catalogue import MODELS
from tests.builders import tiled
from tests.checkpoints import of_a_job, save, state
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.listing import CONDITIONS
from worker.checkpoint.vaults.folder_vault import FolderVault

TEXT = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
MODEL, PLAN = MODELS["tiny-llama"], tiled("2x3 1x3")
SAVED = 2  # the column of the time, which is that of the machine's clock


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def ran(line):
    done = CliRunner().invoke(heddle, shlex.split(line)[1:], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    """The folder of the document."""
    monkeypatch.chdir(tmp_path)
    vault = FolderVault(tmp_path / "checkpoints")
    for attempt in (Attempt(1, 200), Attempt(1, 300), Attempt(2, 400)):
        known = of_a_job(MODEL, attempt.step).model_copy(
            update={
                "plan_digest": PLAN.digest,
                "held_out_loss": 1.7302 if attempt.step == 200 else None,
            }
        )
        save(vault, attempt, PLAN, state(MODEL, attempt.step), known)
    vault.remove(Attempt(2, 400).manifest)
    return vault


def test_the_list_that_is_shown_is_the_one_that_the_command_prints(checkpoints):
    (block,) = blocks("console")
    line, *shown = block.splitlines()
    rows = [
        [cell for index, cell in enumerate(row.split()) if index != SAVED]
        for row in (*shown, *ran(line.removeprefix("$ ")).splitlines())
    ]
    assert rows[: len(shown)] == rows[len(shown) :]


def test_every_command_runs_and_torch_reads_what_was_exported(checkpoints):
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert {line.split()[2] for line in commands} == {"show", "verify", "export", "rm"}
    for line in commands:
        ran(line)
    (code,) = blocks("python")
    written: dict[str, Any] = {}
    exec(code, written)  # the document's own lines
    for part, suffix in enumerate(("", "/exp_avg", "/exp_avg_sq")):
        assert torch.equal(written["state"][f"1.q{suffix}"], state(MODEL, 300).parts["1.q"][part])
    assert {name.split("/")[0] for name in checkpoints.names()} == {
        "step-200.e1",  # the best
        "step-400.e2",  # it may be under way
    }


def test_every_condition_has_a_row():
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE) == list(CONDITIONS)
