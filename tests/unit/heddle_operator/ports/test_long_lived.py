"""Full collections are costly once; what is garbage by then or later is freed all the same."""

from __future__ import annotations

import gc
import weakref

import pytest

from heddle_operator.ports.long_lived import COSTLY_S, THAW_S, LongLived


class Clock:
    def __init__(self):
        self.now, self.cpu_s = 0.0, 0.0

    def cpu(self):
        """Each look is `cpu_s` after the one before."""
        self.now += self.cpu_s
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def nothing_is_frozen():
    gc.collect()
    gc.unfreeze()
    yield
    gc.unfreeze()


class Ring:
    """Garbage that only a collection frees."""

    def __init__(self):
        self.self = self


def test_what_lives_is_frozen_after_a_costly_collection_alone(clock):
    with LongLived(lambda: clock.now, clock.cpu):
        gc.collect()
        assert gc.get_freeze_count() == 0
        clock.cpu_s = 2 * COSTLY_S
        gc.collect(1)
        assert gc.get_freeze_count() == 0
        gc.collect()
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert gc.get_freeze_count() == 0


def test_new_garbage_is_freed_at_once_and_frozen_garbage_after_an_hour(clock):
    with LongLived(lambda: clock.now, clock.cpu):
        old = Ring()
        told = weakref.ref(old)
        clock.cpu_s = 2 * COSTLY_S
        gc.collect()
        clock.cpu_s = 0.0
        del old
        new = weakref.ref(Ring())
        gc.collect()
        assert (new(), told() is None) == (None, False)
        clock.now += THAW_S + 1
        gc.collect()  # which thaws
        gc.collect()
        assert told() is None
