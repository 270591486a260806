"""worker/device/broken.py: the first reason stays, and every check after it fails with it."""

from __future__ import annotations

import pytest

from worker.device.broken import Broken


def test_a_world_stands_until_it_is_broken_for_one_reason():
    broken = Broken()
    broken.check()
    assert not broken.is_set
    broken.set("rank 1 is gone")
    broken.set("rank 2 is gone")
    assert broken.is_set
    with pytest.raises(ConnectionError, match="rank 1 is gone"):
        broken.check()
