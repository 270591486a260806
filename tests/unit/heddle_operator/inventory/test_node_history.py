"""Nodes are remembered by when they joined and when their notice was seen."""

from __future__ import annotations

import math

import pytest

from heddle_operator.inventory.node_history import NodeHistory
from heddle_operator.inventory.nodes import NodeRequirements, facts_of

REQUIRED = NodeRequirements({}, leave_on_cordon=False, gpu_types=("demo-fast",))
READY_AT_S = 1_000_000.0


def a_node(gpus=2, **spec):
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-12T13:46:40Z"}
    return {
        "metadata": {
            "name": "a", "labels": {"heddle.dev/gpu-type": "demo-fast"},
        },
        "spec": spec,
        "status": {
            "capacity": {"nvidia.com/gpu": "2"},
            "allocatable": {"nvidia.com/gpu": str(gpus)},
            "conditions": [ready],
        },
    }  # fmt: skip


@pytest.fixture
def look():
    """Look at a node at a time; what is seen of it."""
    history = NodeHistory(clock_offset_s=READY_AT_S - 10)

    def look(now, node=None):
        view = history.view(facts_of(node, REQUIRED), (0, 0), now) if node else None
        history.keep_only(["a"] if node else [])
        return view and view.seen

    return look


def test_at_the_first_look_a_node_has_been_there_since_it_was_ready(look):
    assert look(50.0, a_node()).joined_at_s == 10.0
    assert look(60.0, a_node()).joined_at_s == 10.0


def test_a_node_that_comes_later_or_again_joins_when_it_is_seen(look):
    look(40.0, a_node())
    look(50.0)
    assert look(60.0, a_node()).joined_at_s == 60.0


def test_a_node_without_free_gpus_joins_when_it_has_some(look):
    look(40.0, a_node())
    assert look(50.0, a_node(gpus=0)).gpus == 0
    assert look(60.0, a_node()).joined_at_s == 60.0


def test_a_notice_counts_from_when_it_was_seen_and_anew_after_it_was_gone(look):
    taint = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}
    look(40.0, a_node())
    for now in (50.0, 60.0):
        assert look(now, a_node(taints=[taint])).leaving_at_s == 50.0 + 120.0
    look(70.0, a_node())
    assert look(80.0, a_node(taints=[taint])).leaving_at_s == 80.0 + 120.0


def test_a_notice_that_follows_another_counts_from_when_it_was_seen_itself(look):
    keys = ("rebalance-recommendation", "spot-itn")
    first, second = ({"key": f"aws-node-termination-handler/{key}"} for key in keys)
    assert look(40.0, a_node(taints=[first])).leaving_at_s == math.inf
    for now in (50.0, 60.0):
        assert look(now, a_node(taints=[first, second])).leaving_at_s == 50.0 + 120.0
