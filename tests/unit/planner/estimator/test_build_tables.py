"""The estimator's tables are the cost model's seconds: cards as stated, links as measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cluster.composition import Composition, Node
from planner.cost import variants
from planner.cost.gradient_sync import sync_seconds
from planner.cost.links import EdgeEnd, edge_seconds
from planner.cost.memory import boundary_bytes
from planner.estimator.build_tables import pricing_of
from planner.estimator.gradient_sync import sync_seconds as estimated_sync_seconds
from planner.estimator.unplaced_plan import new_plan
from planner.estimator.workspace import new_workspace
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from planner.profiles.generator import find_profile
from planner.profiles.profile import LinkCost, Profile

WORKLOAD = Workload(model=find_model("llama3-8b"), global_batch=512, sequence_length=2048)
PROFILE = find_profile(WORKLOAD)
RATE = PROFILE.between_nodes("h100").bandwidth_bytes_per_s


def tables_of(*cards: float | None, profile: Profile = PROFILE):
    rows = (
        Node(name=f"n{i}", gpu_type="h100", gpus=8, nic_bytes_per_s=card)
        for i, card in enumerate(cards)
    )
    pricing = pricing_of(WORKLOAD, Composition(tuple(rows)), profile)
    assert pricing is not None
    return pricing


def measured(link: LinkCost) -> LinkCost:
    """The link, but of half the rate for messages of up to 1 GB, as if measured."""
    rate, sizes = link.bandwidth_bytes_per_s, (1e6, 1e8, 1e9)
    return replace(link, points=tuple((n, link.latency_s + 2 * n / rate) for n in sizes))


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_the_tables_see_network_cards_that_nodes_state(factor):
    pricing = tables_of(None, None, factor * RATE)
    plain, stated = pricing.tables.nic
    assert [one.nic_bytes_per_s for one in pricing.classes] == [0.0, factor * RATE]
    assert plain[1] == pytest.approx(factor * stated[1])


@pytest.mark.parametrize("profile", [PROFILE, replace(PROFILE, network=measured(PROFILE.network))])
def test_edges_between_nodes_are_the_evaluators(profile):
    profile = replace(profile, nics={})
    pricing = tables_of(None, 0.3 * RATE, profile=profile)
    tables, owners = pricing.tables, [pricing.classes[i] for i in pricing.tables.option_type]
    for z, b in enumerate(tables.sizes.tolist()):
        message = boundary_bytes(WORKLOAD, b)
        for o, one in enumerate(pricing.options):
            for p, other in enumerate(pricing.options):
                ends = (
                    EdgeEnd(*option, 6, owners[index].nic_bytes_per_s or None)
                    for option, index in ((one, o), (other, p))
                )
                seconds = edge_seconds(profile, *ends, message, inside=False)
                found_s = max(tables.port_s[o, z, 6], tables.port_s[p, z, 6])
                assert found_s == pytest.approx(2 * seconds, rel=1e-12)


def test_gradient_sums_are_at_the_rate_of_large_measured_messages():
    link = measured(PROFILE.network)
    tables = tables_of(None, None, profile=replace(PROFILE, network=link, nics={})).tables
    latency_s, byte_s = tables.nic[0]
    large = 8e9
    assert latency_s + byte_s * large == pytest.approx(link.shared_by(8).seconds(large))


def test_gradients_of_a_stage_on_one_node_are_summed_over_its_own_links():
    pricing = tables_of(None, None, None, None)
    tables, unplaced = pricing.tables, new_plan()
    unplaced.number[0], unplaced.depth[0], unplaced.replicas[0] = 1, 4, 2
    unplaced.options[0, :4] = pricing.options.index(("h100", 4))
    unplaced.blocks[0, 0, :4] = 8
    stages = (Stage(gpu_type="h100", tp=4, layers=8),) * 4
    placement = tuple(
        PlacedStage(0, r, s, f"n{s}", tuple(range(4 * r, 4 * r + 4)))
        for r in range(2)
        for s in range(4)
    )
    plan = Plan((FilledTemplate(stages, 1, (256, 256)),), placement)
    real_s = max(sync_seconds(WORKLOAD, RankMap.of(plan), PROFILE, {}))
    work = new_workspace(tables)
    assert estimated_sync_seconds(tables, unplaced, work, True) == pytest.approx(real_s, rel=1e-3)
    apart = tables._replace(ring=np.full_like(tables.ring, np.inf))
    assert estimated_sync_seconds(apart, unplaced, work, True) == np.inf


def test_the_exchange_of_experts_is_computed_once_for_nodes_that_differ_in_speed(monkeypatch):
    asked = replace(WORKLOAD, model=find_model("qwen3-30b-a3b"))
    profile, real = find_profile(asked), variants.expert_seconds

    def exchanges(speeds: int) -> tuple[int, list[np.ndarray]]:
        """How many are computed, and the seconds of blocks of each class at full speed."""
        computed = []
        monkeypatch.setattr(variants, "expert_seconds", lambda *a: computed.append(a) or real(*a))
        rows = (
            Node(name=f"n{i}", gpu_type="h100", gpus=8, speed_factor=1 - i % speeds / 100)
            for i in range(12)
        )
        pricing = pricing_of(asked, Composition(tuple(rows)), profile)
        assert pricing is not None
        tables = pricing.tables
        seconds = [
            tables.block_s[tables.option_type == index] * one.speed_factor
            for index, one in enumerate(pricing.classes)
        ]
        return len(computed), seconds

    few, _ = exchanges(2)
    many, seconds = exchanges(6)
    assert 0 < many <= few
    for others in seconds[1:]:
        np.testing.assert_allclose(others, seconds[0])
