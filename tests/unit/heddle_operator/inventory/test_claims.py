"""A pod that waits keeps others off GPUs for a while, and then only if it could have them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from heddle_operator.inventory.claims import CLAIM_S, counts, in_words
from heddle_operator.inventory.requests import GPU, allocation_of, requests_of

MADE = "2026-01-01T00:00:00Z"
MADE_S = 1767225600.0
KNOWN = ("default-scheduler", "own-scheduler")
NODE = {
    "metadata": {"name": "n1", "labels": {"disk": "ssd", "kubernetes.io/hostname": "n1"}},
    "spec": {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]},
    "status": {"allocatable": {GPU: "4", "cpu": "16", "memory": "64Gi", "pods": "10"}},
}
TOLERATES = {"tolerations": [{"key": "team", "operator": "Exists"}]}


def a_claim(gpus=4, cpu="8", conditions=(), **spec):
    asked = {"requests": {GPU: str(gpus), "cpu": cpu}}
    tied = {"kubernetes.io/hostname": "n1", **spec.pop("selects", {})}
    return allocation_of(
        {
            "metadata": {"uid": "u", "name": "x", "namespace": "y", "creationTimestamp": MADE},
            "spec": {
                **TOLERATES, "nodeSelector": tied, "containers": [{"resources": asked}], **spec,
            },
            "status": {"phase": "Pending", "conditions": list(conditions)},
        }
    )  # fmt: skip


def does_count(claim, after_s=CLAIM_S, **requested):
    held = {name: Decimal(number) for name, number in requested.items()}
    return counts(claim, NODE, held, MADE_S + after_s, KNOWN)


@pytest.mark.parametrize(
    ("claim", "requested", "is_kept"),
    [
        (a_claim(), {}, True),
        (a_claim(schedulerName="own-scheduler"), {}, True),
        (a_claim(schedulerName="nobody"), {}, False),
        (a_claim(cpu="17"), {}, False),
        (a_claim(), {"cpu": 9}, False),
        (a_claim(), {GPU: 1}, False),
        (a_claim(), {"pods": 10}, False),
        (a_claim(tolerations=[]), {}, False),
        (a_claim(selects={"disk": "hdd"}), {}, False),
        (a_claim(selects={"disk": "ssd"}), {}, True),
    ],
    ids=[
        *("fits", "the job's scheduler", "nobody's scheduler", "more CPU than there is"),
        *("more CPU than is free", "more GPUs than are free", "too many pods"),
        *("a taint", "another label", "the label"),
    ],
)
def test_a_claim_that_nobody_can_meet_ends_by_itself(claim, requested, is_kept):
    assert does_count(claim, CLAIM_S - 1, **requested)
    assert does_count(claim, CLAIM_S + 1, **requested) == is_kept


def test_a_claim_counts_for_a_while_after_the_scheduler_found_no_room():
    refused = {
        "type": "PodScheduled", "status": "False", "lastTransitionTime": "2026-01-01T00:01:00Z",
    }  # fmt: skip
    claim = a_claim(conditions=[refused], schedulerName="nobody")
    assert does_count(claim, 60.0 + CLAIM_S - 1)
    assert not does_count(claim, 60.0 + CLAIM_S)


def test_a_claim_on_more_gpus_than_the_node_has_keeps_nobody_off():
    assert not does_count(a_claim(gpus=5), 0.0)
    assert not counts(a_claim(), {}, {}, MADE_S, KNOWN)


def test_who_waits_is_said():
    assert in_words([a_claim()]) == "pod x of namespace y waits for 4 GPUs"


def test_a_pod_asks_for_what_the_scheduler_counts():
    def container(cpu, **more):
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("1"), {"resources": {"limits": {"memory": "1Ki"}}}],
        "initContainers": [container("3"), container("500m", restartPolicy="Always")],
        "overhead": {"cpu": "250m"},
    }
    assert requests_of(spec) == {
        "cpu": Decimal("3.25"), "memory": Decimal(1024), "pods": Decimal(1),
    }  # fmt: skip
