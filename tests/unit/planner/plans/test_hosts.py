"""Hosts: a share of their node's card each, and the price of the whole node, which is paid once."""

from __future__ import annotations

from planner.cluster.composition import Composition, Node
from planner.cost.money import cheapest_price, plan_price
from planner.plans.hosts import plan_on_hosts, with_hosts
from tests.builders import demo_profile, on_one_node, template

PRICED = Composition(
    (
        Node(name="a", gpu_type="demo-fast", gpus=6, hosts=(2, 2, 2), price=7.0),
        Node(name="b", gpu_type="demo-fast", gpus=3, hosts=(2, 1), price=5.0),
    )
)


def test_a_host_knows_its_node_and_those_that_are_like_it():
    hosted = with_hosts(PRICED, demo_profile()).nodes
    assert [node.host_of for node in hosted] == [
        ("a", 0, 6, 3),
        ("a", 2, 6, 3),
        ("a", 4, 6, 3),
        ("b", 0, 3, 1),
        ("b", 2, 3, 1),
    ]
    assert [node.whole for node in hosted] == ["a", "a", "a", "b", "b"]
    assert [node.whole for node in PRICED.nodes] == ["a", "b"]


def test_a_node_is_paid_whole_and_once_whichever_of_its_hosts_a_plan_uses():
    hosted = with_hosts(PRICED, demo_profile())
    one, all_three = (
        on_one_node(template("1x6"), node="a"),
        on_one_node(template("2x2 2x2 2x2"), node="a"),
    )
    for plan in (one, all_three):
        there = plan_on_hosts(plan, hosted)
        assert there is not None
        assert plan_price(there, hosted) == plan_price(plan, PRICED) == 7.0
    assert cheapest_price(hosted) == cheapest_price(PRICED) == 5.0
