"""Lines for who follows a run: neither a closed pipe nor a full disk ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heddle.train.screen.output import Output

PROGRAM = """
import os
from heddle.train.screen.output import Output
output = Output(is_quiet=False)
for _ in range(3):
    output.write("a line\\n")
os._exit(7)
"""


def ended(sink):
    """Status of a program that writes three lines to it, and what it says of that."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], stdout=sink, stderr=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.fixture
def left():
    """A pipe whose reader has left."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_reader_that_leaves_costs_lines_and_is_said_once(left):
    said = "the output cannot be written: Broken pipe; the run goes on\n"
    assert ended(left) == (7, said)


def test_a_full_disk_costs_lines_and_is_said_once():
    said = "the output cannot be written: No space left on device; the run goes on\n"
    with Path("/dev/full").open("w") as full:
        assert ended(full) == (7, said)


def test_without_standard_output_nothing_is_written(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    Output(is_quiet=False).write("a line\n")


def test_lines_go_to_standard_error_where_the_output_is_for_programs(capsys):
    Output(is_quiet=True).write("a line\n")
    assert capsys.readouterr() == ("", "a line\n")
