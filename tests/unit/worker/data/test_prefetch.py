"""Reading ahead changes nothing of what is read, is bounded, and delays nobody."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.data.batches import MicroBatch
from worker.data.prefetch import Prefetch

PATIENCE_S = 30.0


def batch(step, index):
    return MicroBatch(torch.tensor([step, index]), torch.tensor([index]), 1.0)


def reader(count):
    return lambda step: (batch(step, index) for index in range(count))


def taken(batches):
    return [tuple(found.tokens.tolist()) for found in batches]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=8), st.integers(1, 5))
def test_whatever_steps_are_asked_for_each_gets_its_own(asked, ahead):
    """Also where a step was left in its middle, as when a world broke."""
    prefetch = Prefetch(reader(3), ahead)
    for step, wanted in asked:
        batches = prefetch.of_step(step, 3)
        assert taken(next(batches) for _ in range(wanted)) == [(step, i) for i in range(wanted)]
    prefetch.close()


def test_no_more_is_read_ahead_than_allowed():
    read, all_read = [], threading.Event()

    def note(step):
        for index in range(4):
            read.append((step, index))
            if len(read) == 4:
                all_read.set()
            yield batch(step, index)

    prefetch = Prefetch(note, ahead=2)
    next(prefetch.of_step(7, 4))
    assert all_read.wait(PATIENCE_S)
    # One was taken, two wait, one is in the thread's hand.
    assert read == [(7, 0), (7, 1), (7, 2), (7, 3)]
    prefetch.close()


def test_nothing_is_read_before_it_is_asked_for():
    asked = threading.Event()
    prefetch = Prefetch(lambda _: asked.set() or iter(()))
    prefetch.of_step(0, 4)
    assert not asked.wait(0.1)
    prefetch.close()


def test_an_error_is_raised_where_its_micro_batch_is_asked_for_and_not_before():
    def spoilt(step):
        yield batch(step, 0)
        if step == 2:
            raise ZeroDivisionError
        yield batch(step, 1)

    prefetch = Prefetch(spoilt, ahead=9)
    assert taken(prefetch.of_step(0, 2)) == [(0, 0), (0, 1)]
    assert taken(prefetch.of_step(1, 2)) == [(1, 0), (1, 1)]
    batches = prefetch.of_step(2, 2)
    assert taken([next(batches)]) == [(2, 0)]
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert taken(prefetch.of_step(3, 2)) == [(3, 0), (3, 1)]
    prefetch.close()


def test_who_waits_for_a_micro_batch_says_so_and_who_finds_one_does_not():
    answers, said = threading.Event(), []

    @contextmanager
    def waiting():
        said.append("waits")
        answers.set()
        yield
        said.append("came")

    def slow(step):
        assert answers.wait(PATIENCE_S)
        for index in range(3):
            yield batch(step, index)
        read.set()

    read = threading.Event()
    prefetch = Prefetch(slow, waiting=waiting)
    batches = prefetch.of_step(0, 3)
    assert taken([next(batches)]) == [(0, 0)]
    assert said == ["waits", "came"]
    assert read.wait(PATIENCE_S)
    assert taken(batches) == [(0, 1), (0, 2)]
    assert said == ["waits", "came"]
    prefetch.close()


def test_closing_ends_a_thread_that_was_left_while_it_waited():
    answers, asked = threading.Event(), threading.Event()

    @contextmanager
    def waiting():
        asked.set()
        yield

    def hung(step):
        assert answers.wait(PATIENCE_S)
        yield batch(step, 0)

    prefetch = Prefetch(hung, waiting=waiting)
    with ThreadPoolExecutor(1) as pool:
        left = pool.submit(next, prefetch.of_step(0, 1))
        assert asked.wait(PATIENCE_S)
        prefetch.close()
        assert isinstance(left.exception(PATIENCE_S), RuntimeError)
    answers.set()


def test_closing_does_not_wait_for_a_disk_that_does_not_answer():
    answers, asked, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(step):
        yield batch(step, 0)
        asked.set()
        answers.wait(PATIENCE_S)
        ended.set()
        yield batch(step, 1)

    prefetch = Prefetch(slow)
    next(prefetch.of_step(0, 2))
    assert asked.wait(PATIENCE_S)
    prefetch.close()
    assert not ended.is_set()
    answers.set()
    assert ended.wait(PATIENCE_S)
