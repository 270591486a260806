"""Plans of two commits are compared cell by cell."""

from __future__ import annotations

import pytest

from benchmarks.two_commits.plans import comparisons


def row(case, rate, seed=0, digest="same"):
    return {
        "model": "m",
        "case": case,
        "seed": seed,
        "budget": 9,
        "rate": rate,
        "digest": digest,
        "seconds": 1.0,
    }


def test_the_mean_is_of_all_cells_and_the_median_of_seeds():
    before = [row(case, 100.0, seed) for case in ("a", "b") for seed in (0, 1, 2)]
    rates = {("a", 0): 80.0, ("a", 1): 98.0, ("a", 2): 100.0}
    after = [
        row(one["case"], rates.get((one["case"], one["seed"]), 100.0), one["seed"])
        for one in before
    ]
    (found,) = comparisons(before, after)
    assert found.cells == 6
    assert found.mean_points == pytest.approx(-22 / 6)
    assert (found.worst_case, found.worst_points) == ("a", pytest.approx(-2.0))


def test_cells_of_one_commit_alone_do_not_count():
    (found,) = comparisons([row("a", 1.0), row("b", 1.0)], [row("a", 1.0, digest="other")])
    assert (found.cells, found.equal) == (1, 0)
