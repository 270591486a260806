"""model/dropout.py: what is dropped depends on seed, place and sample, and on nothing else."""

from __future__ import annotations

import hashlib

import pytest
import torch

from worker.device.device import CPU
from worker.model.dropout import dropped, keep_mask
from worker.model.forward_context import ForwardContext


def mask(samples, name="1.o", rate=0.3, first=0, count=400, seed=1):
    return keep_mask(seed, samples, name, rate, first, count, CPU)


def test_a_mask_is_that_of_the_rule_in_whole_numbers():
    """The rule told again, number by number; if it changes, the losses of all jobs change."""

    def mix(x):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = ((x ^ (x >> shift)) * factor) % 2**32
        return x ^ (x >> 16)

    key = hashlib.blake2b(b"1/1.o/7", digest_size=8).digest()
    low, high = (int.from_bytes(half, "big") for half in (key[:4], key[4:]))
    expected = [mix(mix((index + low) % 2**32) ^ high) >= int(0.3 * 2**32) for index in range(400)]
    assert mask(range(7, 8)).tolist() == [expected]


def test_micro_batches_and_cuts_of_a_sample_drop_the_same():
    whole = mask(range(4, 8))
    assert torch.equal(torch.cat([mask(range(4, 5)), mask(range(5, 8))]), whole)
    halves = [mask(range(4, 8), first=first, count=200) for first in (0, 200)]
    assert torch.equal(torch.cat(halves, dim=1), whole)


def test_seeds_places_and_samples_drop_different_numbers():
    masks = [
        mask(range(4, 5)),
        mask(range(5, 6)),
        mask(range(4, 5), seed=2),
        mask(range(4, 5), name="1.down"),
    ]
    assert len({tuple(m[0].tolist()) for m in masks}) == 4


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_rate_is_dropped_and_the_mean_stays(rate):
    x = torch.ones(8, 10_000)
    found = dropped(x, ForwardContext(seed=3, samples=range(8)), "2.o", rate)
    assert (found == 0).float().mean().item() == pytest.approx(rate, abs=0.01)
    assert found.mean().item() == pytest.approx(1.0, abs=0.02)
    rows = (found == 0).float()
    together = (rows[0] * rows[1]).mean().item()
    assert together == pytest.approx(rate**2, abs=0.02)  # two samples are independent


def test_without_samples_nothing_is_dropped():
    x = torch.ones(2, 5)
    assert dropped(x, None, "1.o", 0.5) is x
    assert dropped(x, ForwardContext(seed=1), "1.o", 0.5) is x
    assert dropped(x, ForwardContext(seed=1, samples=range(2)), "1.o", 0.0) is x
