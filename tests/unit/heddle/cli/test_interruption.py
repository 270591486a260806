"""Ctrl-C keeps the best plan so far, and ends the program where there is none or it comes again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from heddle.cli.interruption import interruption
from planner.api import answer
from planner.request import PlanRequest
from tests.builders import demo_profile, nodes, workload

PRESSING = """
import itertools, os, signal
from heddle.main import main
from heddle.cli.interruption import Interruption
ask, asked = Interruption.__call__, itertools.count()
def press(self):
    if next(asked) == 20:
        os.kill(os.getpid(), signal.SIGINT)
    return ask(self)
Interruption.__call__ = press
main()
"""
LONG = ("plan", "--composition", "demo-fast=2x4", "--budget-s", "600", "--output", "json")


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_the_search_once_it_has_begun_and_the_program_the_second_time():
    with interruption() as asked:
        assert not asked()
        press()
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            press()


def test_ctrl_c_before_the_search_ends_the_program():
    with interruption(), pytest.raises(KeyboardInterrupt):
        press()


def test_ctrl_c_while_machine_code_is_loaded_waits_until_the_search_asks():
    name = {"__name__": "llvmlite.binding.executionengine"}
    called_from_c = eval("lambda press: press()", name)
    with interruption() as asked:
        called_from_c(press)
        assert asked()


def test_afterwards_ctrl_c_means_what_it_meant():
    with interruption() as asked:
        assert not asked()
    with pytest.raises(KeyboardInterrupt):
        press()


def test_who_is_interrupted_gets_the_best_plan_so_far_without_bound_and_gains():
    asked = 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        return asked > 5

    request = PlanRequest(
        workload=workload(), composition=nodes("fast-0:2 fast-1:3"), budget_evaluations=10**9
    )
    request = replace(request, wants_marginal=True)
    found = answer(request, demo_profile(), interrupted=interrupted)
    assert found.throughput_samples_s > 0
    assert found.marginal == ()


@pytest.mark.slow
def test_heddle_plan_prints_what_it_has_found_and_ends_with_130():
    done = subprocess.run(
        [sys.executable, "-c", PRESSING, *LONG],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 130
    assert json.loads(done.stdout)["throughput_samples_s"] > 0
    assert done.stderr == "The search was interrupted; this is the best plan that it found.\n"
