"""The structure sweep: random structures, and where planners land."""

from __future__ import annotations

import pytest

from benchmarks.paper.measured import sweep


@pytest.mark.slow
def test_random_structures_are_priced_by_the_estimator_and_the_same_again():
    found = sweep.measure(structures=200)
    assert found == sweep.measure(structures=200)
    for data in found.values():
        assert 0 < data["fitting"] <= data["structures"] == 200
        assert data["percentiles"] == sorted(data["percentiles"])
        rates = [rate for _, rate in data["points"]]
        assert max(rates) <= data["percentiles"][-1] + 0.01
