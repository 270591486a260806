"""worker/control/activity.py: who waits for whom, also with two threads at work."""

from __future__ import annotations

import contextlib
import threading

import pytest

from worker.contract import READING
from worker.control.activity import Activity, LeftBehind


class Other:
    """Another thread of the rank, which prepares the next epoch and waits for its peers."""

    def __init__(self, activity):
        self._activity, self._waits, self._came = activity, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()
        assert self._waits.wait(10)

    def _wait(self):
        with self._activity.wait():
            self._waits.set()
            assert self._came.wait(10)

    def end(self):
        self._came.set()
        self._thread.join()


def test_parts_work_and_peers_that_came_are_progress():
    activity = Activity()
    seen = [activity.progress]
    activity.begin("training")
    seen.append(activity.progress)
    activity.advance()
    seen.append(activity.progress)
    with activity.wait():
        seen.append(activity.progress)
    seen.append(activity.progress)
    assert seen == [0, 1, 2, 2, 3]
    assert activity.part == "training"


def test_it_waits_until_its_peers_came_or_went():
    activity = Activity()
    with contextlib.suppress(ConnectionError), activity.wait():
        assert activity.waiting
        raise ConnectionError
    assert not activity.waiting


def test_a_step_that_waits_still_waits_when_the_next_epoch_has_met_its_members():
    activity = Activity()
    activity.begin("training")
    other = Other(activity)
    with activity.wait():
        other.end()
        assert activity.waiting


def test_a_step_does_not_wait_because_the_next_epoch_does():
    activity = Activity()
    activity.begin("training")
    other = Other(activity)
    assert not activity.waiting
    other.end()


def test_a_rank_that_only_prepares_waits_for_the_others():
    activity = Activity()
    activity.begin("starting")
    other = Other(activity)
    assert activity.waiting
    other.end()
    assert not activity.waiting


def test_a_rank_that_reads_data_waits_for_no_peer_and_says_so():
    activity = Activity()
    activity.begin("training")
    before = activity.progress
    with activity.read():
        assert (activity.part, activity.waiting, activity.progress) == (READING, False, before)
    assert (activity.part, activity.progress) == ("training", before + 1)


def test_what_another_thread_reads_is_no_part_of_the_training():
    activity, parts = Activity(), []
    activity.begin("training")
    reads, came = threading.Event(), threading.Event()

    def read():
        with activity.read():
            reads.set()
            assert came.wait(10)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert reads.wait(10)
    parts.append(activity.part)
    came.set()
    thread.join()
    assert parts == ["training"]


def test_a_thread_that_reads_data_can_be_left_behind():
    activity = Activity()
    activity.begin("training")
    said = []
    with pytest.raises(LeftBehind), activity.read():
        said.append(activity.leave_behind(threading.get_ident()))
    activity.begin("halted")
    assert (said, activity.part) == ([True], "halted")


def test_a_thread_that_was_left_behind_ends_once_and_a_later_one_with_its_number_does_not():
    activity, came = Activity(), []
    with pytest.raises(LeftBehind), activity.wait(may_be_left=True):
        assert activity.leave_behind(threading.get_ident())
    with activity.wait(may_be_left=True):
        came.append("went on")
    assert came == ["went on"]
