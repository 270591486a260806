"""The formula: each term on its own, then the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_types import HARDWARE
from planner.cost.evaluate import ReplicaCost, StageCost, cost_of, rank_times
from planner.cost.links import EdgeEnd, edge_seconds
from planner.cost.stage import stage_seconds
from planner.errors import InvalidPlan, UnprofiledConfiguration
from planner.plans.plan import PlacedStage, Plan, Stage
from planner.profiles.generator import generate
from tests.builders import MODEL, MOE, demo_profile, nodes, on_one_node, placed, template, workload
from tests.refusals import refused

BYTES = 1e6  # of a message


def test_a_replica_takes_m_minus_1_bottlenecks_and_each_stage_once():
    stages = (
        StageCost(forward_s=1.0, backward_s=2.0, to_previous_s=0.0, to_next_s=0.5),
        StageCost(forward_s=2.0, backward_s=4.0, to_previous_s=0.5, to_next_s=0.0),
    )
    assert [stage.time_s for stage in stages] == [4.0, 7.0]
    assert ReplicaCost(0, 0, 3, stages).pipeline_s == 2 * 7.0 + 11.0


def test_replicas_in_lock_step_go_at_the_pace_of_the_slowest_for_as_many_rounds():
    slow_links = (Stage(gpu_type="a6000", tp=1, layers=1), Stage(gpu_type="a6000", tp=1, layers=2))
    apart = replace(template("1x1 1x2", 1, (3, 1)), stages=slow_links)
    spread = replace(apart, stages=(replace(slow_links[0], ep=2, etp=1), slow_links[1]))
    where = Composition(
        (
            Node(name="a", gpu_type="a6000", gpus=2),
            Node(name="b", gpu_type="a6000", gpus=1, speed_factor=0.5),
            Node(name="c", gpu_type="a6000", gpus=1),
        )
    )
    spots = tuple(
        PlacedStage(0, r, s, node, (gpu,))
        for r, s, node, gpu in ((0, 0, "a", 0), (0, 1, "a", 1), (1, 0, "b", 0), (1, 1, "c", 0))
    )
    task = replace(workload(4), model=replace(MOE, layers=3))
    profile = generate(task.model, task.sequence_length, task.precision, (HARDWARE["a6000"],))
    alone = cost_of(Plan((apart,), spots), task, where, profile).replicas
    assert [one.rounds for one in alone] == [3, 1]
    assert alone[0].pipeline_s != alone[1].pipeline_s
    fast, slow = cost_of(Plan((spread,), spots), task, where, profile).replicas
    assert [(one.micro_batches, one.rounds) for one in (fast, slow)] == [(3, 3), (1, 3)]
    slowest = [
        max(pair)
        for pair in zip(*([s.time_s for s in one.stages] for one in (fast, slow)), strict=True)
    ]
    assert slowest[0] == slow.stages[0].time_s > fast.stages[0].time_s
    assert fast.pipeline_s == slow.pipeline_s == 2 * max(slowest) + sum(slowest)
    assert slow.stages[0].memory.activations == fast.stages[0].memory.activations


def test_lock_step_waits_for_the_slow_link_of_one_replica_and_the_slow_gpu_of_another():
    computes = StageCost(forward_s=2.0, backward_s=4.0, to_previous_s=0.1, to_next_s=0.2)
    sends = StageCost(forward_s=1.0, backward_s=2.0, to_previous_s=1.0, to_next_s=2.0)
    for one in (computes.slower(sends), sends.slower(computes)):
        assert one.time_s == 2.0 + 4.0 + 2 * 1.0 + 2 * 2.0


def test_a_stage_is_its_layers_with_tp_communication_and_its_ends():
    block = demo_profile().layer_cost("block", "demo-fast", 2, 4)
    head = demo_profile().layer_cost("head", "demo-fast", 2, 4)
    work = stage_seconds(
        demo_profile(), MODEL, Stage(gpu_type="demo-fast", tp=2, layers=3), 4, range(4, 8)
    )
    expected_s = (
        3 * (block.forward_s + block.backward_s + block.tp_communication_s)
        + head.forward_s
        + head.backward_s
        + head.tp_communication_s
    )
    total_s = work.forward_s + work.backward_s + work.communication_s + work.recompute_s
    assert total_s == pytest.approx(expected_s)
    assert work.backward_s > work.forward_s


def test_iteration_is_slowest_replica_plus_sync_plus_optimizer():
    plan = on_one_node(template("1x3 1x3", 2, (3, 2)), template("2x6", 2, (1,)))
    priced = cost_of(plan, workload(12), nodes("fast-0:6"), demo_profile())
    slowest = max(replica.pipeline_s for replica in priced.replicas)
    assert priced.iteration_s == slowest + priced.sync_s + priced.optimizer_s
    assert priced.throughput_samples_s == 12 / priced.iteration_s
    assert 0 < priced.bubble < 1


def test_stages_on_one_node_talk_over_its_link_others_over_the_network():
    row = template("1x3 1x3", 2, (4,))
    inside = placed(row, composition=nodes("fast-0:2"))
    between = Plan((row,), (PlacedStage(0, 0, 0, "a", (0,)), PlacedStage(0, 0, 1, "b", (0,))))
    message = 2 * 128 * 64 * 4
    for plan, composition, link in (
        (inside, nodes("fast-0:2"), demo_profile().inside_node("demo-fast")),
        (between, _named(nodes("fast-0:1 fast-1:1"), "a", "b"), demo_profile().between_nodes()),
    ):
        first, last = cost_of(plan, workload(8), composition, demo_profile()).replicas[0].stages
        assert first.to_next_s == last.to_previous_s == link.seconds(message)
        assert (first.to_previous_s, last.to_next_s) == (0.0, 0.0)
        assert first.p2p_s == 2 * link.seconds(message)


def _named(composition: Composition, *names: str) -> Composition:
    return Composition(
        tuple(replace(n, name=name) for n, name in zip(composition.nodes, names, strict=True))
    )


def test_a_straggler_computes_slower_but_its_links_do_not():
    row = template("1x3 1x3", 2, (4,))
    whole = nodes("fast-0:2")
    slow = Composition((replace(whole.nodes[0], speed_factor=0.5),))
    plan = placed(row, composition=whole)
    fast_times = rank_times(plan, workload(8), whole, demo_profile())
    slow_times = rank_times(plan, workload(8), slow, demo_profile())
    for fast, straggling in zip(fast_times, slow_times, strict=True):
        assert straggling.forward_s == 2 * fast.forward_s
        assert straggling.to_next_s == fast.to_next_s


def test_rank_times_come_in_rank_order_with_the_whole_tp_group():
    plan = on_one_node(template("2x4 1x2", 2, (4,)))
    times = rank_times(plan, workload(8), nodes("fast-0:3"), demo_profile())
    assert len(times) == 3
    assert times[0] == times[1] != times[2]
    assert times[0].to_previous_s == times[2].to_next_s == 0.0


def test_wrong_composition_or_unprofiled_key_is_one_sentence():
    plan = on_one_node(template("1x3 1x3", 2, (4,)))
    with refused(InvalidPlan, "Mismatch"):
        cost_of(plan, workload(8), nodes("fast-1:2"), demo_profile())
    odd = on_one_node(template("1x3 1x3", 3, (4,)))
    with refused(UnprofiledConfiguration, "Missing"):
        cost_of(odd, workload(12), nodes("fast-0:2"), demo_profile())


def test_where_rings_are_known_a_tp_group_sends_over_its_share_of_the_port():
    plain = demo_profile()
    known = replace(plain, rings={"demo-fast": {2: plain.inside_node("demo-fast")}})
    whole = plain.between_nodes()
    left, right = (EdgeEnd("demo-fast", 1, sending, None) for sending in (4, 1))
    sent, shared = whole.seconds(BYTES), whole.shared_by(4).seconds(BYTES)
    assert edge_seconds(plain, left, right, BYTES, inside=False) == sent
    assert edge_seconds(known, left, right, BYTES, inside=False) == shared
    assert edge_seconds(known, right, right, BYTES, inside=False) == sent
    inside = plain.inside_node("demo-fast").seconds(BYTES)
    assert edge_seconds(known, left, right, BYTES, inside=True) == inside
    half, cut = left._replace(tp=2), whole.shared_by(2).seconds(BYTES)
    gather_s = plain.inside_node("demo-fast").seconds(BYTES / 2)
    assert edge_seconds(known, half, half, BYTES, inside=False) == cut + gather_s


def test_a_tp_group_gathers_a_message_from_another_node():
    profile = demo_profile()
    sent = profile.between_nodes().seconds(BYTES)
    one, four = (EdgeEnd("demo-fast", tp, tp, None) for tp in (1, 4))
    gather_s = profile.inside_ring("demo-fast", 4).seconds(BYTES * 3 / 4)
    for ends in ((one, four), (four, one), (four, four)):
        assert edge_seconds(profile, *ends, BYTES, inside=False) == sent + gather_s
    assert edge_seconds(profile, one, one, BYTES, inside=False) == sent


def test_a_network_card_is_shared_by_the_stages_whose_edges_leave_the_node():
    plain = demo_profile()
    known = replace(plain, rings={"demo-fast": {2: plain.inside_node("demo-fast")}})
    network, message = plain.between_nodes(), 2 * 128 * 64 * 4
    row = template("1x2 1x2 1x2", 2, (2, 2))

    def on(*where: str) -> float:
        """The last edge of the first replica, whose last stage is alone on its node."""
        names = dict.fromkeys(where)
        gpus = {name: iter(range(5)) for name in names}
        placement = tuple(
            PlacedStage(0, index // 3, index % 3, name, (next(gpus[name]),))
            for index, name in enumerate(where)
        )
        composition = Composition(
            tuple(Node(name=name, gpu_type="demo-fast", gpus=5) for name in names)
        )
        priced = cost_of(Plan((row,), placement), workload(8), composition, known)
        return priced.replicas[0].stages[1].to_next_s

    assert on("a", "a", "b", "a", "a", "a") == network.seconds(message)
    assert on("a", "a", "b", "a", "a", "c") == network.shared_by(2).seconds(message)
    assert on("a", "a", "b", "a", "c", "a") == network.shared_by(3).seconds(message)


def test_an_edge_takes_the_slower_of_both_ends_cards_each_at_the_rate_that_its_node_states():
    row = template("1x3 1x3", 2, (4,))
    plan = Plan((row,), (PlacedStage(0, 0, 0, "a", (0,)), PlacedStage(0, 0, 1, "b", (0,))))
    plain = _named(nodes("fast-0:1 fast-1:1"), "a", "b")
    network = demo_profile().between_nodes()
    rate = network.bandwidth_bytes_per_s
    message = 2 * 128 * 64 * 4

    def to_next_s(*cards: float | None) -> float:
        own = zip(plain.nodes, cards, strict=True)
        composition = Composition(tuple(replace(n, nic_bytes_per_s=card) for n, card in own))
        return (
            cost_of(plan, workload(8), composition, demo_profile()).replicas[0].stages[0].to_next_s
        )

    assert to_next_s(None, None) == network.seconds(message)
    assert to_next_s(2 * rate, None) == network.seconds(message)
    both = to_next_s(2 * rate, 4 * rate)
    assert both == pytest.approx(network.latency_s + message / (2 * rate))
    for cards in ((rate / 4, None), (None, rate / 4), (rate / 4, rate / 2)):
        assert to_next_s(*cards) == pytest.approx(network.latency_s + message / (rate / 4))


def test_replicas_on_nodes_with_other_cards_have_other_prices():
    row = template("1x3 1x3", 2, (2, 2))
    where = tuple(
        PlacedStage(0, r, s, name, (0,))
        for r, s, name in ((0, 0, "a"), (0, 1, "b"), (1, 0, "c"), (1, 1, "d"))
    )
    composition = _named(nodes("fast-0:1 fast-1:1 fast-2:1 fast-3:1"), "a", "b", "c", "d")
    slow = Composition(
        tuple(replace(n, nic_bytes_per_s=1e6) if n.name == "d" else n for n in composition.nodes)
    )
    quick, late = cost_of(Plan((row,), where), workload(8), slow, demo_profile()).replicas
    assert late.pipeline_s > quick.pipeline_s
    assert (
        quick == cost_of(Plan((row,), where), workload(8), composition, demo_profile()).replicas[0]
    )


def test_equal_replicas_are_one_kind():
    plan = on_one_node(template("1x3 1x3", 2, (3, 3)), template("2x6", 2, (1,)))
    priced = cost_of(plan, workload(14), nodes("fast-0:6"), demo_profile())
    assert [(r.template, number) for r, number in priced.distinct] == [(0, 2), (1, 1)]
