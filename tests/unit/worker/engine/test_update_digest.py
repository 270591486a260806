"""worker/engine/update_digest.py: the bits of an update are those of IEEE 754, on every device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.refusals import refused
from worker.device.device import CPU
from worker.engine import optimizer
from worker.engine.update_digest import UPDATE_DIGEST, check_update, update_digest
from worker.errors import DeviceUnusable

ASK = (
    "from worker.device.device import CPU\n"
    "from worker.engine.update_digest import update_digest\n"
    "print(update_digest(CPU))"
)


@pytest.fixture
def anew():
    update_digest.cache_clear()
    yield
    update_digest.cache_clear()


def test_this_processor_has_the_digest_of_all_devices(anew):
    assert update_digest(CPU) == UPDATE_DIGEST
    check_update(CPU, frozenset({"a100-80", "h100"}))


@pytest.mark.slow  # each process imports torch
@pytest.mark.parametrize("instructions", ["default", "avx2"])
def test_the_bits_depend_on_no_instruction_set(instructions):
    """Without AVX2 torch has no operation that multiplies and adds at once."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "ATEN_CPU_CAPABILITY": instructions},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == UPDATE_DIGEST


def test_other_bits_are_refused_where_types_differ_and_nowhere_else(anew, monkeypatch):
    """As on a device that rounds in between, a larger number stands for epsilon here."""
    monkeypatch.setattr(optimizer, "NORM_EPSILON", 1e-5)
    assert update_digest(CPU) != UPDATE_DIGEST
    check_update(CPU, frozenset({"h100"}))
    with refused(DeviceUnusable, "Mismatch"):
        check_update(CPU, frozenset({"a100-80", "h100"}))
