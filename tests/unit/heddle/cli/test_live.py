"""heddle/cli/live.py: a live view needs a terminal that is wide enough, and keys to read."""

from __future__ import annotations

import io
import sys

import click
import pytest

from heddle.cli.live import fits_live, require_keys
from heddle.commands.demo import demo
from heddle.commands.train import train


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stdout", "columns", "no_color", "fits"),
    [
        (Terminal(), "80", None, True),
        (Terminal(), "79", None, False),
        (Terminal(), "200", "1", True),
        (Terminal(), "200", "", True),
        (io.StringIO(), "200", None, False),
    ],
    ids=["wide", "narrow", "NO_COLOR", "NO_COLOR empty", "no terminal"],
)
def test_the_live_view_needs_a_terminal_wide_enough_and_no_colour(
    monkeypatch, stdout, columns, no_color, fits
):
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert fits_live() is fits


def test_keys_are_read_from_a_terminal_alone(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal())
    require_keys(True)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    require_keys(False)
    with pytest.raises(click.UsageError):
        require_keys(True)


@pytest.mark.parametrize("command", [demo, train])
def test_demo_and_train_have_the_same_options_of_the_view(command):
    names = {option for one in command.params for option in one.opts}
    assert {"--headless", "--interactive", "--output", "-o"} <= names
