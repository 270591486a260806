"""Experts: what a tiling costs in communication, inside a node and over nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_types import HARDWARE
from planner.cost.evaluate import cost_of
from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage, faults
from planner.profiles.generator import generate

MIXTRAL = find_model("mixtral-8x7b")
WORKLOAD = Workload(model=MIXTRAL, global_batch=8, sequence_length=2048, precision="fp16")
PROFILE = generate(MIXTRAL, 2048, "fp16", (HARDWARE["a6000"], HARDWARE["h100"]))


def seconds(ep: int, etp: int, nodes: int, kind: str = "a6000", tp: int = 8) -> float:
    devices = tuple(Device(f"node-{i * nodes // 8}", kind, None) for i in range(8))
    return expert_seconds(WORKLOAD, PROFILE, Tiling(tp, ep, etp), devices, 1, None)


def test_sending_tokens_beats_slicing_experts_over_nodes():
    assert 0.50 < 1 - seconds(8, 1, 2) / seconds(1, 8, 2) < 0.85


def test_leaving_the_node_costs():
    for ep, etp in ((8, 1), (1, 8), (2, 4), (4, 2)):
        assert seconds(ep, etp, 2, "h100") > seconds(ep, etp, 1, "h100")


def test_experts_that_nobody_shares_cost_nothing():
    assert seconds(1, 1, 2) == 0.0


def test_a_run_inside_its_node_pays_no_network_for_its_sums():
    inside = seconds(2, 4, 2)
    assert inside < seconds(1, 8, 2)


def test_a_sum_over_nodes_goes_at_the_pace_of_the_slowest_link_of_its_ring():
    experts = MIXTRAL.experts
    assert experts is not None
    sent = experts.per_token * WORKLOAD.sequence_length * MIXTRAL.hidden * 2  # fp16, of one slice
    for kind, is_slower_inside in (("a6000", True), ("h100", False)):
        inside, nic = PROFILE.inside_ring(kind, 4), PROFILE.between_nodes(kind)
        assert (inside.bandwidth_bytes_per_s < nic.bandwidth_bytes_per_s) == is_slower_inside
        slowest = inside if is_slower_inside else nic
        assert seconds(1, 8, 2, kind) == pytest.approx(slowest.seconds(7 / 4 * sent))


def plan_of(**tiling) -> Plan:
    stages = (replace(Stage(gpu_type="h100", tp=4, layers=32), **tiling),)
    placed = tuple(PlacedStage(0, r, 0, f"n{r}", (0, 1, 2, 3)) for r in range(2))
    return Plan((FilledTemplate(stages, 1, (4, 4)),), placed)


NODES = Composition(
    (Node(name="n0", gpu_type="h100", gpus=4), Node(name="n1", gpu_type="h100", gpus=4))
)


def test_a_plan_with_a_tiling_is_priced_with_its_memory_and_its_sync():
    plain = cost_of(plan_of(), WORKLOAD, NODES, PROFILE)
    tiled = cost_of(plan_of(ep=8, etp=1), WORKLOAD, NODES, PROFILE)
    memory = [p.replicas[0].stages[0].memory for p in (plain, tiled)]
    assert memory[1].weights < 0.6 * memory[0].weights
    assert tiled.sync_s < 0.5 * plain.sync_s  # no expert has a second holder
    assert tiled.replicas[0].stages[0].work.communication_s > 0
    again = Plan.from_json(plan_of(ep=8, etp=1).to_json())
    assert again == plan_of(ep=8, etp=1)


@pytest.mark.parametrize(
    ("tiling", "sentence"),
    [
        ({"ep": 3}, "do not divide the 8 experts"),
        ({"ep": 8, "etp": 4}, "whose product does not divide its 8 GPUs"),
    ],
)
def test_an_impossible_tiling_is_a_fault(tiling, sentence):
    assert any(sentence in fault for fault in faults(plan_of(**tiling), WORKLOAD, NODES))


def test_the_slowest_card_counts_each_at_the_rate_that_its_node_states():
    rate = PROFILE.between_nodes("h100").bandwidth_bytes_per_s

    def over(card: float | None, ep: int, etp: int) -> float:
        devices = tuple(Device(f"node-{i // 4}", "h100", card if i < 4 else None) for i in range(8))
        return expert_seconds(WORKLOAD, PROFILE, Tiling(8, ep, etp), devices, 1, None)

    for ep, etp in ((8, 1), (1, 8)):
        assert over(None, ep, etp) == over(2 * rate, ep, etp) == seconds(ep, etp, 2, "h100")
        assert over(rate / 10, ep, etp) > 5 * over(None, ep, etp)


def test_sums_and_exchanges_share_a_card_with_all_gpus_that_send():
    devices = tuple(Device(f"node-{i // 4}", "h100", None) for i in range(8))
    nic = PROFILE.between_nodes("h100")

    def moved_s(ep: int, etp: int, at_once: int) -> float:
        senders = {"node-0": at_once, "node-1": at_once}
        whole_s = expert_seconds(WORKLOAD, PROFILE, Tiling(8, ep, etp), devices, 1, senders)
        return whole_s - (2 if ep > 1 else 1) * nic.latency_s

    for ep, etp in ((8, 1), (1, 8)):
        assert moved_s(ep, etp, 8) == pytest.approx(2 * moved_s(ep, etp, 4))
    assert moved_s(1, 8, 4) == moved_s(1, 8, 1)  # one ring has the card for itself
