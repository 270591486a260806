"""worker/profile/types.py: the row of a processor as a GPU type."""

from __future__ import annotations

import pytest

from planner.model.catalogue import find_model
from worker.device.device import CPU
from worker.engine.update_digest import UPDATE_DIGEST
from worker.profile.bench import Bench
from worker.profile.types import measure_type


@pytest.mark.slow
def test_a_processor_has_its_update_and_the_bits_of_that_and_no_launches():
    found = measure_type(
        Bench(CPU, 1),
        find_model("tiny-llama"),
        "cpu",
        "bf16",
        memory_bytes=1 << 30,
        reserve_bytes=1,
    )
    assert found.optimizer_latency_s > 0
    assert found.optimizer_s_per_parameter > 0
    assert found.update_digest == UPDATE_DIGEST
    assert (found.launch_s, found.host_copy_bytes_per_s) == (0.0, None)
