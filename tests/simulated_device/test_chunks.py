"""What a step computes in chunks has the processor's bits on a device, and mixes no memories."""

from __future__ import annotations

import pytest

from tests.simulated_device.chunks import NAMES
from tests.unit.worker.ranks import run_ranks


@pytest.mark.slow
def test_each_part_has_the_bits_of_the_processor():
    (found,) = run_ranks("tests.simulated_device.chunks:claims", 1)
    assert found == dict.fromkeys(NAMES, True)
