"""A fingerprint names bytes and their order, by xxh3 and by integer operations alike."""

from __future__ import annotations

import time

import pytest
import torch

from migration import fingerprint as module
from migration.fingerprint import fingerprint, integer_fingerprint
from tests.peak_memory import peak_bytes

PARTS = tuple(
    torch.randn(16, 6, generator=torch.Generator().manual_seed(part)) for part in range(3)
)
laws = pytest.mark.parametrize("law", [fingerprint, integer_fingerprint])


def changed(change):
    """The parts after `change` was at work on copies of them."""
    parts = [part.clone() for part in PARTS]
    change(parts)
    return parts


def swap_rows(parts):
    parts[0][[2, 9]] = parts[0][[9, 2]]


def swap_moments(parts):
    parts[1], parts[2] = parts[2], parts[1]


def swap_neighbours(parts):
    parts[2][:, [0, 1]] = parts[2][:, [1, 0]]


@laws
@pytest.mark.parametrize("change", [swap_rows, swap_moments, swap_neighbours])
def test_what_changes_places_is_noticed(law, change):
    assert law(changed(change)) != law(PARTS)


@laws
@pytest.mark.parametrize("bit", range(32))
def test_a_flipped_bit_is_noticed_wherever_it_is(law, bit):
    def flip(parts):
        parts[bit % 3].view(torch.int32).view(-1)[7 * bit % 96] ^= torch.tensor(1 << bit).int()

    assert law(changed(flip)) != law(PARTS)


@laws
def test_it_is_of_the_elements_whatever_their_strides(law):
    strided = [part.t().contiguous().t() for part in PARTS]
    assert not strided[0].is_contiguous()
    assert law(strided) == law(PARTS) == law([part.clone() for part in PARTS])
    assert 0 <= law(PARTS) < 1 << 64


@laws
def test_all_numbers_are_different_of_many_places(law):
    """One element set, each in its turn: as many numbers as places."""
    zeros = torch.zeros(500)
    assert len({law([zeros.index_fill(0, torch.tensor([k]), 1.0)]) for k in range(500)}) == 500


@laws
@pytest.mark.parametrize("chunk", [4, 6, 60])
def test_how_much_is_read_at_a_time_changes_no_bit(law, chunk, monkeypatch):
    views = [PARTS[0], PARTS[1][:, 2:], PARTS[2].view(-1)]
    whole = law(views)
    monkeypatch.setattr(module, "CHUNK", chunk)
    assert law(views) == whole


@laws
@pytest.mark.parametrize("columns", [256, 255])  # the second one is a strided view
def test_it_takes_memory_of_a_chunk(law, columns, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 1 << 10)
    part = torch.ones(1 << 8, 1 << 8)[:, :columns]
    sums_bytes = 16 * part.numel() // module.CHUNK + 64
    copies_bytes = 2 * 4 * module.CHUNK if columns == 255 else 0  # one is made, one is left
    assert peak_bytes(lambda: law([part])) <= (8 + 8) * module.CHUNK + copies_bytes + sums_bytes


def test_a_core_takes_3_gigabytes_a_second():
    part = torch.ones(1 << 23)
    fastest = 1e9
    for _ in range(5):
        started = time.process_time()
        fingerprint([part])
        fastest = min(fastest, time.process_time() - started)
    assert part.nbytes / fastest > 3e9
