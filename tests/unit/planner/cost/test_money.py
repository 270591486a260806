"""Money: whole nodes are paid, only those that a plan uses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.composition import Composition, Node
from planner.cost.evaluate import cost_of
from planner.cost.money import (
    highest_price,
    money_per_sample,
    plan_price,
    require_prices,
    with_prices,
)
from planner.errors import InvalidComposition
from planner.plans.plan import Plan
from tests.builders import demo_profile, nodes, on_one_node, template, workload
from tests.refusals import refused

THREE = Composition(
    (
        Node(name="a", gpu_type="demo-fast", gpus=4, price=8.0),
        Node(name="b", gpu_type="demo-fast", gpus=2),
        Node(name="c", gpu_type="demo-slow", gpus=2),
    )
)


def one_gpu_of(node: str) -> Plan:
    return on_one_node(template("1x6", 2, (4,)), node=node)


def test_a_type_has_a_price_by_gpu_and_a_node_may_have_its_own():
    priced = with_prices(THREE, {"demo-fast": 3.0})
    assert [node.price for node in priced.nodes] == [8.0, 6.0, None]
    assert [replace(node, price=None) for node in priced.nodes] == [
        replace(node, price=None) for node in THREE.nodes
    ]


def test_idle_gpus_of_a_used_node_are_paid_and_other_nodes_are_not():
    priced = with_prices(THREE, {"demo-fast": 3.0, "demo-slow": 1.0})
    assert plan_price(one_gpu_of("a"), priced) == 8.0
    assert plan_price(one_gpu_of("b"), priced) == 6.0


def test_a_sample_costs_the_nodes_for_its_share_of_the_iteration():
    composition = with_prices(nodes("fast-0:2"), {"demo-fast": 1800.0})
    plan = one_gpu_of("fast-0")
    priced = cost_of(plan, workload(8), composition, demo_profile())
    per_sample = money_per_sample(plan, priced, composition)
    assert per_sample == pytest.approx(3600.0 / 3600 * priced.iteration_s / 8)


def test_what_has_no_price_is_not_guessed():
    plan = one_gpu_of("b")
    priced = cost_of(plan, workload(8), THREE, demo_profile())
    assert plan_price(plan, THREE) is None
    assert money_per_sample(plan, priced, THREE) is None
    with refused(InvalidComposition, "PriceMissing", "prices"):
        require_prices(THREE)
    require_prices(with_prices(THREE, {"demo-fast": 0.0, "demo-slow": 1.0}))


def test_a_limit_allows_the_rounding_of_a_sum_and_no_more():
    assert 0.1 + 0.1 + 0.1 > 0.3  # as floats
    assert 0.1 + 0.1 + 0.1 <= highest_price(0.3) < 0.3001
    assert highest_price(None) == float("inf")
