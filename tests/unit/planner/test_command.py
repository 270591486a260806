"""planner/command.py: how a program ends."""

import click
import pytest

from planner.command import run
from planner.errors import InvalidPlan


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


def test_the_status_of_a_command_is_the_programs(monkeypatch):
    assert ends(monkeypatch, lambda count: count, ["--count", "3"]) == 3
    assert ends(monkeypatch, lambda count: None) == 0
    assert ends(monkeypatch, lambda count: None, ["--count", "many"]) == 2
