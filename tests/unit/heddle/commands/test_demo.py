"""heddle/commands/demo.py: a mistake is one sentence before anything starts."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from heddle.commands import demo as command
from heddle.commands.demo import demo
from planner.errors import HeddleError, InvalidRequest
from tests.refusals import refused


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    """What should have been refused ends here, instead of training for minutes."""

    def start(*_):
        raise AssertionError("the demo started")

    monkeypatch.setattr(command, "_run", start)


def said(*arguments, code=2):
    done = CliRunner().invoke(demo, arguments)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.output.strip().splitlines()[-1]


def test_the_first_line_says_that_the_gpus_are_emulated(tmp_path):
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("[]")  # with which the demo ends at once
    done = CliRunner().invoke(demo, ["--nodes", str(nodes)])
    assert done.output.startswith(
        "heddle demo: a real training job on emulated GPUs; Ctrl-C ends it"
    )


def test_keys_need_a_terminal():
    done = CliRunner().invoke(demo, ["--interactive"])
    assert (done.exit_code, done.output.count("emulated")) == (2, 0)  # it greets nobody
    assert "standard input must be a terminal" in done.output


@pytest.mark.parametrize("name", ["none/demo.svg", "demo.png", "."])
def test_a_picture_that_cannot_be_is_refused_before_the_run(tmp_path, name):
    with refused(InvalidRequest, "Unwritable"):
        CliRunner().invoke(demo, ["--picture", str(tmp_path / name)], catch_exceptions=False)


def test_a_picture_that_may_not_be_written_is_refused_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with refused(InvalidRequest, "Unwritable"):
        CliRunner().invoke(demo, ["--picture", str(tmp_path / "demo.svg")], catch_exceptions=False)


@pytest.mark.parametrize(
    ("option", "value"), [("--steps", "0"), ("--steps", "many"), ("--output", "xml")]
)
def test_an_impossible_value_names_its_option(option, value):
    assert option in said(option, value)


@pytest.mark.parametrize(
    ("nodes", "script", "code"),
    [
        ("- {name: a, type: h100, gpus: 1}", None, "Unknown"),
        ("- {name: a, type: demo-fast}", None, "Malformed"),
        (None, "- {at_step: 3, kill: nobody}", "Contradiction"),
    ],
)
def test_files_with_a_mistake_are_errors_of_ours(tmp_path, nodes, script, code):
    arguments = ["--headless"]
    for name, text in (("nodes", nodes), ("script", script)):
        if text is not None:
            (tmp_path / f"{name}.yaml").write_text(text)
            arguments += [f"--{name}", str(tmp_path / f"{name}.yaml")]
    error = CliRunner().invoke(demo, arguments).exception
    assert isinstance(error, HeddleError)
    assert error.code == code
