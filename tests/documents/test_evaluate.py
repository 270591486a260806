"""docs/evaluate.md runs as it is written, and names every option, set and key."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.evaluation.command import evaluate_command
from planner.training.composition_sets import COMMITTED

pytestmark = pytest.mark.system

TEXT = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text()
SHORT = "--reference-s 0 --budget-evaluations 40 --rollouts 4 --curve-evaluations 20"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def keys(data: object) -> set[str]:
    """All keys of JSON, at any depth."""
    if isinstance(data, list):
        return set().union(*map(keys, data))
    if isinstance(data, dict):
        return set(data).union(*map(keys, data.values()))
    return set()


def test_every_command_of_the_document_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (file,) = blocks("text")
    Path("mine.txt").write_text(file)
    (commands,) = blocks("sh")
    said = []
    for line in commands.splitlines():
        words = shlex.split(f"{line} {SHORT}")
        assert words[:3] == ["python", "-m", "benchmarks.evaluation"]
        done = CliRunner().invoke(evaluate_command, words[3:], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        said.append(done.stdout)
    assert "tomorrow" in said[0]
    assert Path("curves.svg").read_text().startswith("<?xml")
    assert json.loads(Path("best.json").read_text())
    table = TEXT.split("\n## JSON\n")[1]
    assert not keys(json.loads(said[1])) - set(re.findall(r"`(\w+)(?:\[\])?`", table))


@pytest.mark.parametrize("option", [p.opts[0] for p in evaluate_command.params])
def test_every_option_is_in_the_document(option):
    assert re.search(rf"`{option}`", TEXT)


def test_the_document_names_no_option_that_is_gone():
    known = {p.opts[0] for p in evaluate_command.params} | {"--composition", "--method"}
    assert not set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) - known


def test_every_set_that_comes_with_heddle_is_in_the_document():
    assert all(f"| `{path.stem}` |" in TEXT for path in COMMITTED.glob("*.txt"))
