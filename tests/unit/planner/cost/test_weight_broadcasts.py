"""Broadcasts of owners' weights: who sends how many bytes, and how long it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.evaluate import cost_of
from planner.cost.weight_broadcasts import broadcast_messages, broadcast_seconds
from planner.model.tensors import model_tensors
from planner.plans.plan import PlacedStage, Plan
from planner.plans.ranks import RankMap
from tests.builders import MODEL, demo_profile, nodes, on_one_node, template, workload

NUMEL = sum(tensor.numel for tensor in model_tensors(MODEL))
ZERO = replace(workload(), zero=1)


def test_without_zero_or_with_one_replica_nobody_broadcasts():
    twice = RankMap.of(on_one_node(template("1x6", 1, (1, 1))))
    once = RankMap.of(on_one_node(template("2x3 1x3"), template("1x6")))
    assert set(broadcast_seconds(workload(), twice, demo_profile(), {})) == {0.0}
    assert set(broadcast_seconds(ZERO, once, demo_profile(), {})) == {0.0}


def test_replicas_broadcast_all_they_multiply_once_in_its_precision():
    ranks = RankMap.of(on_one_node(template("1x6", 1, (1, 1, 1)), template("1x6")))
    assert broadcast_messages(ZERO, ranks) == {(0, 1, 2): 4 * NUMEL}
    half = replace(ZERO, precision="bf16")
    assert broadcast_messages(half, ranks) == {(0, 1, 2): 2 * NUMEL}


def test_inside_a_node_they_take_its_link_and_a_latency_for_each_owner():
    ranks = RankMap.of(on_one_node(template("1x6", 1, (1, 1))))
    link = demo_profile().inside_node("demo-fast")
    sent_s = 2 * link.latency_s + 4 * NUMEL / link.bandwidth_bytes_per_s
    assert broadcast_seconds(ZERO, ranks, demo_profile(), {}) == pytest.approx((sent_s, sent_s))


def test_an_iteration_ends_with_the_longest_broadcasts():
    """Slots of a TP group share the NIC of their node."""
    row = template("2x6", 1, (16, 16))
    where = (PlacedStage(0, 0, 0, "fast-0", (0, 1)), PlacedStage(0, 1, 0, "fast-1", (0, 1)))
    plan, there = Plan((row,), where), nodes("fast-0:2 fast-1:2")
    network = demo_profile().between_nodes()
    held = broadcast_messages(ZERO, RankMap.of(plan))[0, 2]
    off, owned = (cost_of(plan.with_zero(z), ZERO, there, demo_profile()) for z in (0, 1))
    sent_s = 2 * network.latency_s + held / (network.bandwidth_bytes_per_s / 2)
    assert off.broadcast_s == 0
    assert owned.broadcast_s == pytest.approx(sent_s)
    after_s = owned.sync_s + owned.optimizer_s + owned.broadcast_s
    slowest_s = max(replica.pipeline_s for replica in owned.replicas)
    assert owned.iteration_s == pytest.approx(slowest_s + after_s)
    assert owned.optimizer_s < off.optimizer_s
