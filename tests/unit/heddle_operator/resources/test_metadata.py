"""Everything that is created for a job goes with it."""

from __future__ import annotations

from heddle_operator.resources.disruption_budget import budget_body
from heddle_operator.resources.metadata import metadata
from heddle_operator.resources.pods import WorkerDefaults, pod_body
from heddle_operator.resources.secret import token_body
from heddle_operator.state.actions import CreatePod
from tests.unit.heddle_operator.resources.jobs import a_job


def test_every_object_belongs_to_the_job():
    pod = pod_body(
        a_job(),
        CreatePod("tiny-n1-0", "n1", 0, 2),
        WorkerDefaults(image="heddle:1", template={}),
        12.5,
    )
    bodies = [pod, token_body(a_job(), "s"), budget_body(a_job(), 1)]
    assert all(body["metadata"]["ownerReferences"][0]["uid"] == "u-1" for body in bodies)
    assert metadata(a_job(), "x")["namespace"] == "ns"
