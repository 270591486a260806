"""control/calls.py: a call fails once its connections are cut, whatever its thread waits for."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from tests.unit.worker.ranks import run_ranks
from worker.control.activity import Activity
from worker.control.calls import GRACE_S, Calls
from worker.control.connections import connections, cut
from worker.world.group import Group

LIMIT_S = 10.0


def make(calls, work, interrupted=False):
    return calls.make(work, lambda: interrupted)


def test_results_and_errors_are_those_of_the_call_and_it_has_one_thread():
    calls = Calls(Activity())
    threads = {make(calls, threading.get_ident) for _ in range(3)}
    assert len(threads) == 1
    assert threads != {threading.get_ident()}

    def fail(error):
        raise error

    for error in (ValueError("no"), SystemExit(0)):
        with pytest.raises(type(error)) as raised:
            make(calls, lambda error=error: fail(error))
        assert raised.value is error
    assert make(calls, threading.get_ident) in threads


def test_the_thread_of_the_calls_says_whether_a_step_waits():
    activity = Activity()
    calls = Calls(activity)
    activity.begin("training")

    def step():
        with activity.wait():
            return activity.waiting

    assert make(calls, step)
    assert not activity.waiting


def test_who_computes_is_waited_for_however_long():
    def compute():
        end_s = time.monotonic() + 2 * GRACE_S
        while time.monotonic() < end_s:
            sum(range(1000))
        return "done"

    assert make(Calls(Activity()), compute, interrupted=True) == "done"


def test_who_waits_for_an_outcome_is_waited_for():
    """It asks a store whose calls have a deadline; the others may have its vote."""
    activity, decided = Activity(), threading.Event()

    def vote():
        with activity.wait():
            assert decided.wait(LIMIT_S)
        return "commit"

    threading.Timer(2 * GRACE_S, decided.set).start()
    assert make(Calls(activity), vote, interrupted=True) == "commit"


def test_who_waits_for_a_connection_that_was_cut_is_left_behind_and_does_nothing_any_more():
    activity = Activity()
    calls = Calls(activity)
    came, done = threading.Event(), []

    def step():
        try:
            with activity.wait(may_be_left=True):
                assert came.wait(LIMIT_S)
            done.append("went on")
        except Exception:
            done.append("handled an error")

    left = make(calls, threading.current_thread)
    begin_s = time.monotonic()
    with pytest.raises(ConnectionError, match="in the middle"):
        make(calls, step, interrupted=True)
    assert time.monotonic() - begin_s < LIMIT_S / 2, "it does not wait until it came"
    assert not activity.waiting
    assert make(calls, threading.current_thread) is not left
    came.set()
    left.join(LIMIT_S)
    assert not left.is_alive()
    assert done == []


def test_one_that_is_not_interrupted_waits():
    activity, came = Activity(), threading.Event()

    def step():
        with activity.wait(may_be_left=True):
            assert came.wait(LIMIT_S)
        return "came"

    threading.Timer(2 * GRACE_S, came.set).start()
    assert make(Calls(activity), step) == "came"


SIZE = 64_000_000  # elements: so large that a cut hits it in the middle


def claims(rank, store):
    """One of two whose message is cut in the middle: seconds until its call failed."""
    activity, told = Activity(), threading.Event()
    calls, before = Calls(activity), connections()
    group = Group.form(store, "first", (0, 1), rank, activity)
    own = connections() - before
    tensor = torch.ones(SIZE)

    def halt():
        cut(own)
        told.set()

    threading.Timer(0.02, halt).start()
    begin_s = time.monotonic()
    try:
        calls.make(lambda: group.recv(tensor, 0) if rank else group.send(tensor, 1), told.is_set)
        found = "the message came"
    except (ConnectionError, RuntimeError):
        found = time.monotonic() - begin_s
    group.release()
    del group
    group = Group.form(store, "second", (0, 1), rank, activity)
    total = torch.tensor([1.0 + rank])
    calls.make(lambda: group.all_reduce_(total), lambda: False)
    return found, total.item()


@pytest.mark.slow
def test_a_message_that_is_cut_in_the_middle_ends_a_step_in_time_and_the_process_goes_on():
    for seconds, total in run_ranks("tests.unit.worker.control.test_calls:claims", 2):
        assert seconds < GRACE_S + LIMIT_S / 2
        assert total == 3.0
