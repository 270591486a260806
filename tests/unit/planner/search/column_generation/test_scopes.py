"""How long gradients are summed in a scope of column generation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.search.column_generation.scopes import (
    BestPlan,
    Scope,
    pipeline_room,
    scope_sync_seconds,
)
from planner.search.column_generation.zones import zones_of


@pytest.fixture(scope="module")
def tables():
    workload = Workload(find_model("llama3-8b"), 512, 2048)
    pricing = pricing_of(
        workload, Composition.from_text("a100-80=2x8,h100=4x1"), find_profile(workload)
    )
    assert pricing is not None
    return pricing.tables


def scope_of(t, allowed: list[bool], **known: float) -> Scope:
    slowest = float(t.nic[:, 1].max())
    zones = zones_of(t, t.layers, 0, slowest, slowest, 2.0)
    return Scope(np.array(allowed), zones, np.zeros(1), np.zeros(1), **known)


def best_of(t, shares: list[float]) -> BestPlan:
    return BestPlan(9.0, 9.0, math.inf, 4, [0], 0.5, t.nic[:, 1] * np.array(shares))


def test_where_all_gpus_of_a_node_send_it_is_what_the_zones_allow(tables):
    scope = scope_of(tables, [True, True])
    assert scope_sync_seconds(tables, scope, best_of(tables, [1.0, 1.0])) == 2.0


def test_gpus_that_share_rings_as_those_of_the_best_plan_take_less(tables):
    scope = scope_of(tables, [True, False])
    assert scope_sync_seconds(tables, scope, best_of(tables, [0.625, 1.0])) == 1.25


def test_a_scope_that_follows_a_plan_takes_as_long_as_the_plan(tables):
    scope = scope_of(tables, [True, True], summed=0.25)
    assert scope_sync_seconds(tables, scope, best_of(tables, [1.0, 1.0])) == 0.5


def test_only_a_scope_that_follows_a_plan_keeps_its_pipelines_from_a_node(tables):
    t = tables
    assert pipeline_room(t, scope_of(t, [True, True])).tolist() == t.room.tolist()


def test_a_pipeline_takes_no_more_gpus_of_a_node_than_rings_may_share_its_nic(tables):
    t = tables
    eight, alone = t.node_gpus == 8, t.node_gpus == 1
    a_third = float(t.nic[eight, 1].min()) * 3 / 8
    assert float(t.nic[alone, 1].max()) <= a_third, "nodes of one GPU are fast enough"
    most = pipeline_room(t, scope_of(t, [True, True], nic_s=a_third))
    of_eight = eight[t.option_type]
    assert most[of_eight].tolist() == [3.0] * int(of_eight.sum())
    assert most[~of_eight].tolist() == t.room[~of_eight].tolist()
    every = pipeline_room(t, scope_of(t, [True, True], nic_s=float(t.nic[:, 1].max())))
    assert every.tolist() == t.room.tolist()
