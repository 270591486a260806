"""The budget protects the live pods of a job."""

from __future__ import annotations

from heddle_operator.resources.disruption_budget import budget_body
from tests.unit.heddle_operator.resources.jobs import a_job


def test_the_budget_counts_in_whole_pods_and_leaves_evictable_ones_out():
    spec = budget_body(a_job(), 3)["spec"]
    assert spec["minAvailable"] == 3
    assert spec["selector"]["matchLabels"]["heddle.dev/job"] == "tiny"
    assert spec["selector"]["matchExpressions"][0]["operator"] == "DoesNotExist"
