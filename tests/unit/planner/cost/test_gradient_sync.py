"""Gradient synchronisation: who sums what with whom, and how long it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.gradient_sync import sync_messages, sync_seconds
from planner.cost.memory import WORKER_BUCKET
from planner.model.tensors import model_tensors
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from tests.builders import MODEL, demo_profile, on_one_node, template, workload
from tests.oracle.instances import instances

ALL_BYTES = 4 * sum(tensor.numel for tensor in model_tensors(MODEL))


def test_one_pipeline_has_nothing_to_sum():
    ranks = RankMap.of(on_one_node(template("2x3 1x3")))
    assert sync_seconds(workload(), ranks, demo_profile(), {}) == (0.0, 0.0, 0.0)


def test_every_gradient_is_summed_once_between_those_who_hold_it():
    ranks = RankMap.of(on_one_node(template("2x6"), template("1x3 1x3")))
    messages = sync_messages(MODEL, ranks, 4)
    assert set(messages) == {(0, 2), (1, 2), (0, 3), (1, 3)}
    assert sum(messages.values()) == ALL_BYTES
    assert messages[0, 2] > messages[1, 2]  # slot 0 speaks for the replicated tensors


def test_inside_a_node_it_takes_the_nodes_link():
    ranks = RankMap.of(on_one_node(template("1x6", 1, (1, 1))))
    link = demo_profile().inside_node("demo-fast")
    assert sync_seconds(workload(), ranks, demo_profile(), {}) == (link.seconds(ALL_BYTES),) * 2


def test_ranks_of_one_node_share_its_nic():
    row = template("2x6", 1, (1, 1))
    where = (PlacedStage(0, 0, 0, "a", (0, 1)), PlacedStage(0, 1, 0, "b", (0, 1)))
    ranks = RankMap.of(Plan((row,), where))
    network = demo_profile().between_nodes()
    lead = sync_messages(MODEL, ranks, 4)[0, 2]
    expected_s = network.latency_s + lead / (network.bandwidth_bytes_per_s / 2)
    assert sync_seconds(workload(), ranks, demo_profile(), {})[0] == pytest.approx(expected_s)


def two_on_one_node_and_one() -> RankMap:
    """Three replicas of one stage: two on node a, one on node b."""
    row = template("1x6", 1, (1, 1, 1))
    where = tuple(
        PlacedStage(0, r, 0, node, (gpu,))
        for r, (node, gpu) in enumerate((("a", 0), ("a", 1), ("b", 0)))
    )
    return RankMap.of(Plan((row,), where))


def test_where_rings_are_known_holders_of_one_node_enter_its_nic_once():
    """NCCL's ring leaves a node once, however many replicas of a piece it has there."""
    ranks = two_on_one_node_and_one()
    plain = demo_profile()
    known = replace(plain, rings={"demo-fast": {2: plain.inside_node("demo-fast")}})
    each, once = (max(sync_seconds(workload(), ranks, profile, {})) for profile in (plain, known))
    network = plain.between_nodes()
    assert once == pytest.approx(network.seconds(4 / 3 * ALL_BYTES))
    assert each == pytest.approx(network.shared_by(2).seconds(4 / 3 * ALL_BYTES))


def test_each_bucket_waits_a_latency():
    ranks = RankMap.of(on_one_node(template("1x6", 1, (1, 1))))
    link = demo_profile().inside_node("demo-fast")
    large = replace(MODEL, hidden=1 << 12, ffn=1 << 14)
    job = replace(workload(), model=large, memory="worker")
    num_bytes = 4 * sum(tensor.numel for tensor in model_tensors(large))
    buckets = -(-num_bytes // (4 * WORKER_BUCKET))
    assert buckets > 10
    expected_s = buckets * link.seconds(num_bytes / buckets)
    assert expected_s > link.seconds(num_bytes) + (buckets - 2) * link.latency_s
    assert sync_seconds(job, ranks, demo_profile(), {}) == pytest.approx((expected_s, expected_s))


def test_a_ring_over_nodes_goes_at_the_pace_of_a_slower_link_inside_one():
    ranks = two_on_one_node_and_one()
    plain = demo_profile()
    slow = replace(plain.between_nodes(), bandwidth_bytes_per_s=1e6)
    known = replace(plain, rings={"demo-fast": {2: slow}})
    seconds = sync_seconds(workload(), ranks, known, {})
    assert seconds == pytest.approx((slow.seconds(4 / 3 * ALL_BYTES),) * 3)


def test_a_nodes_own_network_card_counts_where_it_is_the_slower_one():
    row = template("1x6", 1, (1, 1))
    ranks = RankMap.of(
        Plan((row,), (PlacedStage(0, 0, 0, "a", (0,)), PlacedStage(0, 1, 0, "b", (0,))))
    )
    network = demo_profile().between_nodes()
    rate = network.bandwidth_bytes_per_s
    plain = sync_seconds(workload(), ranks, demo_profile(), {})
    assert sync_seconds(workload(), ranks, demo_profile(), {"b": 2 * rate}) == plain
    slow = sync_seconds(workload(), ranks, demo_profile(), {"b": rate / 5})
    expected_s = network.latency_s + ALL_BYTES / (rate / 5)
    assert slow == pytest.approx((expected_s, expected_s))


EXPERTS = next(i for i in instances() if i.is_moe and not i.profile.rings)


def tiled(*rows: tuple[int, int, int, int]) -> tuple[float, ...]:
    """Seconds of (replicas, TP, EP, ETP) templates of one stage, each replica on a node."""
    model = EXPERTS.request.workload.model
    templates = tuple(
        FilledTemplate(
            (
                Stage(
                    gpu_type="type-a", tp=tp, layers=model.layers, recompute="none", ep=ep, etp=etp
                ),
            ),
            1,
            (1,) * n,
        )
        for n, tp, ep, etp in rows
    )
    where = tuple(
        PlacedStage(t, r, 0, f"{t}{r}", tuple(range(row.stages[0].tp)))
        for t, row in enumerate(templates)
        for r in range(row.replicas)
    )
    ranks = RankMap.of(Plan(templates, where))
    return sync_seconds(EXPERTS.request.workload, ranks, EXPERTS.profile, {})


def test_experts_that_are_held_as_everything_else_is_take_as_long_as_everything_else():
    """EP 2 on TP 2 gives each rank half of the experts, as TP does, with the same holders."""
    assert tiled((2, 2, 2, 1)) == pytest.approx(tiled((2, 2, 1, 0)))


def test_experts_are_summed_with_those_of_other_templates():
    assert tiled((1, 2, 2, 1), (1, 2, 2, 1)) == pytest.approx(tiled((2, 2, 2, 1)))
    mixed_s = tiled((1, 2, 2, 1), (1, 2, 1, 0))  # as many bytes in one more message a rank
    latency_s = EXPERTS.profile.between_nodes("type-a").latency_s
    assert mixed_s == pytest.approx([s + latency_s for s in tiled((2, 2, 1, 0))])


def test_one_pipeline_sums_the_experts_that_several_of_its_ranks_hold():
    assert min(tiled((1, 2, 1, 1))) > 0
    assert tiled((1, 2, 2, 1)) == (0.0, 0.0)
