"""Metis' layer split: by speed, whole layers, and smaller where memory is short."""

from __future__ import annotations

import pytest

from benchmarks.baselines.metis.layer_split import moved, rescaled, split


@pytest.mark.parametrize(
    ("shares", "cuts"), [((0.75, 0.25), (0, 7, 10)), ((0.25, 0.75), (0, 3, 10))]
)
def test_ten_layers_on_two_types_of_speed_three_to_one(shares, cuts):
    """Its release cuts the ten layers of its sample profile at 7 and at 3."""
    found = moved(split((0.1,) * 10, shares), lambda s, a, b: (b - a) / shares[s])
    assert abs(found[1] - cuts[1]) <= 1
    assert max(
        (b - a) / share for a, b, share in zip(found, found[1:], shares, strict=False)
    ) <= max((b - a) / share for a, b, share in zip(cuts, cuts[1:], shares, strict=False))


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (0.2, 0.3, 0.5), (0.01, 0.9, 0.09)])
def test_every_layer_is_in_one_stage(shares):
    cuts = split((0.05, *(0.9 / 12,) * 12, 0.05), shares)
    assert cuts[0] == 0
    assert cuts[-1] == 14
    assert list(cuts) == sorted(cuts)


def test_a_move_never_slows_the_slowest_stage():
    def seconds(stage, start, stop):
        return (stop - start) * (1.0, 3.0, 2.0)[stage]

    before = (0, 2, 8, 10)
    after = moved(before, seconds)
    slowest = [max(seconds(s, c[s], c[s + 1]) for s in range(3)) for c in (before, after)]
    assert slowest[1] < slowest[0]
    assert sum(abs(a - b) for a, b in zip(before, after, strict=True)) <= 4


def test_a_stage_over_its_memory_gives_to_those_with_room():
    shares = rescaled((0.5, 0.5), (20.0, 5.0), (10.0, 10.0))
    assert shares == pytest.approx((0.5 * 0.5 * 0.9, 0.5 + 0.5 - 0.5 * 0.5 * 0.9))
