"""Whatever a user may change of a job that trains: it trains on, and no rank is lost for it."""

from __future__ import annotations

import pytest

from heddle_operator.apis.heddlejob import HeddleJob
from tests.fakes.operator import FakeOperator, a_cluster, a_job

TICK_S = 0.5
WATCHED_S = 60.0
STEPS = 5  # that are trained within that time
EDITS = {
    "more steps": {"steps": 3000},
    "a lower limit": {"elastic": {"maxGPUs": 2}},
    "a higher limit": {"elastic": {"maxGPUs": 4}},
    "no limit": {"elastic": {"maxGPUs": None}},
    "a lower floor": {"elastic": {"minGPUs": 1}},
    "mode Recommend": {"elastic": {"mode": "Recommend"}},
    "a plan that is not there": {"planRef": "mine", "elastic": {"mode": "Manual"}},
    "a deadline": {"deadlineSeconds": 6000},
    "logs as JSON": {"worker": {"logFormat": "json"}},
    "recomputation": {"planner": {"recompute": "full"}},
    "more holders": {"elastic": {"minHolders": 2}},
    "other types": {"elastic": {"gpuTypes": {"allow": ["demo-fast"]}}},
    "other gains and waits": {
        "elastic": {"minGainPercent": 50, "cooldownSeconds": 600, "joinDebounceSeconds": 60}
    },
    "whole checks": {"elastic": {"verify": "Full"}},
    "yields": {"elastic": {"yieldToAutoscaler": True}},
    "pods with a label": {"worker": {"template": {"metadata": {"labels": {"team": "a"}}}}},
}


def edited(job, change):
    """The job with a merge patch of its spec, of the next generation."""
    body = job.model_dump(by_alias=True, mode="json", exclude_none=True)
    for field, value in change.items():
        held = body["spec"].get(field)
        body["spec"][field] = {**held, **value} if isinstance(held, dict) else value
    body["metadata"]["generation"] = (job.metadata.generation or 0) + 1
    return HeddleJob.model_validate(body)


def trained(cluster):
    return min(rank.step for _, rank in cluster.holders())


@pytest.mark.parametrize("edit", EDITS)
def test_a_job_trains_on_whatever_may_be_changed_of_it(edit):
    job = a_job(minGPUs=2, maxGPUs=3)
    operator = FakeOperator(job, a_cluster(job, "a", "b", "c"))
    operator.settle()
    cluster, before = operator.cluster, trained(operator.cluster)
    pids = {rank.pid for _, rank in cluster.holders()}
    operator.job = edited(job, EDITS[edit])
    while cluster.now < WATCHED_S:
        operator.reconcile()
        cluster.tick(TICK_S)
    assert trained(cluster) >= before + STEPS
    assert not [r for r in cluster.records.all if r.reason == "loss" or r.outcome != "live"]
    assert {rank.pid for _, rank in cluster.holders()} <= pids
