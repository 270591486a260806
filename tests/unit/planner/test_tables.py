"""Plans and prices as text."""

from __future__ import annotations

from planner.cost import price
from planner.tables import aligned, memory_table, plan_table, price_sentence, price_table
from tests.builders import demo_profile, nodes, on_one_node, template, workload


def test_columns_line_up():
    assert aligned(("a", "b"), [("long", "x"), ("s", "y")]) == "a     b\nlong  x\ns     y"


def test_a_plan_has_one_row_per_stage_and_a_price_one_per_replica_and_stage():
    plan = on_one_node(template("1x3 1x3", 2, (3, 2)), template("2x6", 2, (1,)))
    priced = price(plan, workload(12), nodes("fast-0:6"), demo_profile())
    rows = plan_table(plan, priced).splitlines()
    assert len(rows) == 1 + 3
    assert "fast-0:0 fast-0:2" in rows[1]
    assert len(price_table(plan, priced).splitlines()) == 1 + 5
    assert len(memory_table(plan, priced, demo_profile()).splitlines()) == 1 + 5


def test_replicas_that_cost_the_same_share_their_rows():
    plan = on_one_node(template("1x3 1x3", 2, (3, 3)))
    priced = price(plan, workload(12), nodes("fast-0:4"), demo_profile())
    rows = price_table(plan, priced).splitlines()
    assert len(rows) == 1 + 2
    assert "2 x 3" in rows[1]


def test_a_sentence_says_which_numbers_are_modelled_and_how_edges_count():
    plan = on_one_node(template("1x6", 2, (6,)))
    priced = price(plan, workload(12), nodes("fast-0:1"), demo_profile())
    text = price_sentence(priced, 1.0, demo_profile(), placed=False)
    assert "profile modelled, links modelled; edges inside a node count as crossing nodes" in text


def test_a_stage_over_its_memory_is_marked():
    plan = on_one_node(template("1x6", 16, (2,)))
    priced = price(plan, workload(32), nodes("fast-0:1"), demo_profile())
    assert "DOES NOT FIT" in memory_table(plan, priced, demo_profile())
