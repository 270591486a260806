"""planner/program.py: how a program ends."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from planner.errors import InvalidPlan
from planner.program import run


def ends(monkeypatch, work, arguments=()):
    command = click.Command("try", callback=work, params=[click.Option(["--count"], type=int)])
    monkeypatch.setattr("sys.argv", ["try", *arguments])
    with pytest.raises(SystemExit) as end:
        run(command)
    return end.value.code


def fail_with(error):
    def work(count):
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidPlan("no stage; give one"), 2),
        (click.UsageError("give --plan"), 2),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
    ],
)
def test_what_a_user_can_cause_ends_in_a_code_and_no_traceback(monkeypatch, capsys, error, code):
    assert ends(monkeypatch, fail_with(error)) == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    if isinstance(error, InvalidPlan):
        assert said == "Error: no stage; give one\n"


def test_what_nobody_foresaw_is_not_hidden(monkeypatch):
    monkeypatch.setattr("sys.argv", ["try"])
    with pytest.raises(ZeroDivisionError):
        run(click.Command("try", callback=lambda: 1 // 0))


def test_a_module_of_an_extra_is_named_with_the_extra_and_no_other_is_hidden(monkeypatch, capsys):
    assert ends(monkeypatch, fail_with(ModuleNotFoundError("none", name="torch.nn"))) == 2
    assert capsys.readouterr().err.endswith("pip install '.[all]'\n")
    with pytest.raises(ModuleNotFoundError):
        ends(monkeypatch, fail_with(ModuleNotFoundError("none", name="mine")))


def test_the_status_of_a_command_is_the_programs(monkeypatch):
    assert ends(monkeypatch, lambda count: count, ["--count", "3"]) == 3
    assert ends(monkeypatch, lambda count: None) == 0
    assert ends(monkeypatch, lambda count: None, ["--count", "many"]) == 2


def test_a_full_disk_is_one_sentence_and_another_failure_of_the_system_is_not_hidden(monkeypatch):
    """In a process of its own: the end of the interpreter, which flushes once more, counts too."""
    program = "import click; from planner.program import run; run(click.Command('x', callback={}))"
    say = program.format("lambda: click.echo('much')")
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "-c", say], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert found.returncode == 2
    assert found.stderr == (
        "Error: the output cannot be written: No space left on device; make room\n"
    )
    with pytest.raises(IsADirectoryError):
        ends(monkeypatch, fail_with(IsADirectoryError(errno.EISDIR, "a folder")))


def test_a_path_that_cannot_be_looked_at_is_named(monkeypatch, capsys):
    error = PermissionError(errno.EACCES, "Permission denied", "/srv/x")
    assert ends(monkeypatch, fail_with(error)) == 2
    assert capsys.readouterr().err == (
        "Error: /srv/x cannot be used: Permission denied; name another path\n"
    )


def test_a_reader_that_leaves_early_hears_no_complaint_and_the_status_says_why():
    program = (
        "import click; from planner.program import run\n"
        "run(click.Command('x', callback=lambda: [click.echo('much' * 9999) for _ in range(99)]))"
    )
    found = subprocess.run(
        ["/bin/sh", "-c", '{ "$0" -c "$1"; echo $? >&2; } | head -c 1', sys.executable, program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.stdout, found.stderr) == ("m", "141\n")


def test_what_a_terminal_cannot_show_is_escaped():
    program = (
        "import click; from planner.program import run\n"
        "run(click.Command('x', callback=lambda: print('n\\xf6de')))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert (found.returncode, found.stdout) == (0, b"n\\xf6de\n")
