"""Commands that search share the options that say how hard."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks.evaluation.command import evaluate_command
from heddle.cli.options import A_FILE, ZERO_STAGE, Finite, effort_options
from heddle.commands.plan import plan
from planner.errors import InvalidRequest
from tests.refusals import refused

SHARED = ("rollouts", "policy", "budget_s", "budget_evaluations", "threads")


@click.command()
@effort_options
def look(**effort):
    click.echo(repr(sorted(effort.items())))


def said(*arguments):
    return CliRunner().invoke(look, arguments)


@pytest.mark.parametrize(
    ("given", "word"),
    [("off", "Off"), ("0", "Off"), ("stage1", "Stage1"), ("1", "Stage1"), ("auto", "Auto")],
)
def test_a_stage_of_zero_is_a_word_or_its_number(given, word):
    assert ZERO_STAGE.convert(given, None, None) == word


def test_without_options_a_search_has_128_rollouts_and_no_budget_of_its_own():
    assert (
        said().output
        == repr(
            [
                ("budget_evaluations", None),
                ("budget_s", None),
                ("policy", None),
                ("rollouts", 128),
                ("threads", None),
            ]
        )
        + "\n"
    )


def test_what_is_given_reaches_the_command():
    found = said("--rollouts", "3", "--policy", "mine", "--budget-s", "0.5")
    assert (
        found.output
        == repr(
            [
                ("budget_evaluations", None),
                ("budget_s", 0.5),
                ("policy", Path("mine")),
                ("rollouts", 3),
                ("threads", None),
            ]
        )
        + "\n"
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [("--rollouts", "0"), ("--budget-s", "0"), ("--budget-evaluations", "0"), ("--threads", "0")],
)
def test_an_effort_of_nothing_is_refused(option, value):
    found = said(option, value)
    assert found.exit_code == 2
    assert option in found.output


def test_plan_and_evaluate_offer_them_in_the_same_words():
    one, other = (
        {option.name: option.help for option in command.params if option.name in SHARED}
        for command in (plan, evaluate_command)
    )
    assert one == other
    assert set(one) == set(SHARED)


@pytest.mark.parametrize("text", ["nan", "inf"])
def test_a_number_that_is_not_finite_is_refused_by_the_name_of_its_option(text):
    command = click.Command("some", params=[click.Option(["--max-price"], type=Finite(0))])
    with refused(InvalidRequest, "OutOfRange", "--max-price"):
        command.main(["--max-price", text], standalone_mode=False)


@pytest.mark.parametrize("name", ["--nodes", "JOB"])
def test_an_empty_path_is_not_the_working_folder(name):
    kind = click.Option if name.startswith("-") else click.Argument
    command = click.Command("some", params=[kind([name], type=A_FILE)])
    with refused(InvalidRequest, "Missing", name):
        command.main(["--nodes", ""] if kind is click.Option else [""], standalone_mode=False)


def test_the_help_says_each_default_once():
    said = CliRunner().invoke(plan, ["--help"]).output.split()
    pairs = [" ".join(said[at : at + 4]) for at in range(len(said))]
    assert not [pair for pair in pairs if pair.count("[default:") == 2]
