"""worker/device/broken.py: the first reason stays, and every check after it fails with it."""

from __future__ import annotations

import pytest

from worker.device.broken import Broken, Patience


def test_a_world_stands_until_it_is_broken_for_one_reason():
    broken = Broken()
    broken.check()
    assert not broken.is_set
    broken.set("rank 1 is gone")
    broken.set("rank 2 is gone")
    assert broken.is_set
    with pytest.raises(ConnectionError, match="rank 1 is gone"):
        broken.check()


def test_who_waits_longer_than_anyone_may_breaks_the_world():
    broken, ended = Broken(), []

    def end():
        ended.append(True)
        broken.set("a GPU hangs")

    assert not Patience(broken, 60.0, end).is_set
    late = Patience(broken, -1.0, end)
    assert (late.is_set, late.is_set, ended) == (True, True, [True])
    with pytest.raises(ConnectionError, match="a GPU hangs"):
        late.check()
