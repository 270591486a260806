"""worker/engine/update_digest.py: the bits of an update are those of IEEE 754, on every device."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.refusals import refused
from worker.device.device import CPU
from worker.engine import optimizer
from worker.engine.optimizer import Recipe, update_
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


def rounded(value: float) -> float:
    """To fp32.  One operation in fp64, then rounded, is that operation in fp32.

    Source: Figueroa, "When is double rounding innocuous?", 1995.
    """
    return float(np.float32(value))


def updated(weight, mean, square, gradient, factors):
    """One element after an update, by one rounded operation after the other."""
    decay, first, share, second, scale, correction, epsilon, step = factors
    weight = rounded(weight * decay)
    mean = rounded(rounded(mean * first) + rounded(gradient * share))
    scaled = rounded(gradient * scale)
    square = rounded(rounded(square * second) + rounded(scaled * scaled))
    root = rounded(rounded(rounded(math.sqrt(square)) * correction) + epsilon)
    return rounded(weight - rounded(rounded(mean / root) * step)), mean, square


def test_every_operation_is_rounded_once():
    recipe = Recipe(betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1, gradient_clip=1.0)
    norm, rate, updates = 0.5, 3e-4, 4
    generator = torch.Generator().manual_seed(11)
    weight, mean, gradient = (torch.randn(4000, generator=generator) for _ in range(3))
    square = torch.rand(4000, generator=generator)
    rows = zip(*(one.tolist() for one in (weight, mean, square, gradient)), strict=True)
    first, second = recipe.betas
    factors = (
        1 - rate * recipe.weight_decay,
        first,
        1 - first,
        second,
        math.sqrt(1 - second),
        1 / math.sqrt(1 - second ** (updates + 1)),
        recipe.epsilon,
        rate / (1 - first ** (updates + 1)),
    )
    asked = [updated(*row, [rounded(factor) for factor in factors]) for row in rows]
    update_((weight, mean, square), gradient, norm, rate, updates, recipe)
    found = zip(*(one.tolist() for one in (weight, mean, square)), strict=True)
    assert list(found) == asked


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
