"""docs/planner.md runs as it is written, and names every option and key."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle.commands.cost import cost
from heddle.commands.plan import plan

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "planner.md").read_text()
DRAWN = ROOT / "docs" / "plan.svg"
COMMANDS = {"plan": plan, "cost": cost}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def run(line: str) -> None:
    """A line of shell: commands of Heddle's joined by `|`, the last into a file by `>`."""
    said = None
    line, _, target = line.partition(" > ")
    for part in line.split(" | "):
        words = shlex.split(part)
        assert words[0] == "heddle"
        if words[1] == "plan" and "--diff" not in words:
            words += ["--budget-evaluations", "100"]  # the document's two seconds each are many
        done = CliRunner().invoke(COMMANDS[words[1]], words[2:], input=said, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        said = done.stdout
    assert said
    if target:
        Path(target).write_text(said)


def test_every_command_of_the_document_runs_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks("yaml"):
        Path(block.splitlines()[0].removeprefix("# ")).write_text(block)
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) >= 10
    for line in lines:
        if "measured.jsonl" in line:  # the reader's own plans
            row = json.loads(Path("plan.json").read_text())
            Path("measured.jsonl").write_text(json.dumps(row | {"measured_s": row["iteration_s"]}))
        run(line)
    assert Path("plan.svg").read_text().startswith("<?xml")
    keys = set(json.loads(Path("plan.json").read_text())) - {"templates", "placement"}
    table = TEXT.split("\n## JSON\n")[1]
    assert not keys - set(re.findall(r"`(\w+)(?:\[\])?`", table))


def test_the_picture_of_the_document_is_that_of_its_command(tmp_path):
    """By its texts: the places of lines may differ by the version of a library."""
    words = ["--composition", "demo-fast=1x2+1x3", "--budget-evaluations", "3000"]
    drawn = tmp_path / "plan.svg"
    done = CliRunner().invoke(plan, [*words, "--picture", str(drawn)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    shown = [re.findall(r"<text[^>]*>([^<]*)", path.read_text()) for path in (DRAWN, drawn)]
    assert shown[0] == shown[1]
    assert len(shown[0]) > 20


def test_the_python_of_the_document_runs(capsys):
    (code,) = blocks("python")
    exec(compile(code, "docs/planner.md", "exec"), {})
    assert re.search(r"^\d+\.\d samples/s$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    "option", [p.opts[0] for p in plan.params if not getattr(p, "hidden", False)]
)
def test_every_option_is_in_the_document(option):
    assert re.search(rf"{option}\b", TEXT)


def test_the_document_names_no_option_that_is_gone():
    options = [option for command in COMMANDS.values() for option in command.params]
    known = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    assert not set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) - known
