"""Exact prices are the evaluator's, for dense plans and for tiled experts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.evaluate import price
from planner.plans.plan import Plan
from planner.search.few_gpus.draft import drafts_of, plan_of
from planner.search.few_gpus.exact_pricing import ExactPrices
from tests.builders import demo_profile, nodes, placed, template, workload
from tests.oracle.answers import committed
from tests.oracle.instances import instances

COMPOSITION = nodes("fast-0:2 fast-1:3 slow-0:2")
ANSWERED = [i for i in instances() if committed()[i.name]["iteration_s"] is not None]


@pytest.mark.parametrize("instance", ANSWERED, ids=lambda instance: instance.name)
def test_an_exact_price_is_the_evaluators(instance):
    request, row = instance.request, committed()[instance.name]
    prices = ExactPrices(request.workload, request.composition, instance.profile)
    drafts = drafts_of(Plan.from_json(row["plan"]), request.composition)
    for _ in range(2):  # computed, and remembered
        found = prices.priced(drafts)
        plan = plan_of(drafts, found.shares, request.composition)
        exact = price(plan, request.workload, request.composition, instance.profile)
        assert found.seconds == pytest.approx(exact.iteration_s, rel=1e-12)
        assert found.seconds == pytest.approx(row["iteration_s"], rel=1e-9)
        floor = prices.floor(drafts)
        assert floor.seconds == pytest.approx(exact.iteration_s - exact.sync_s, rel=1e-9)


def test_a_plan_no_faster_than_the_limit_has_no_price():
    plan = placed(template("2x4 1x2", 2, (16,)), composition=COMPOSITION)
    drafts = drafts_of(plan, COMPOSITION)
    prices = ExactPrices(workload(32), COMPOSITION, demo_profile())
    seconds = prices.priced(drafts).seconds
    assert prices.priced(drafts, seconds) is None
    assert prices.priced(drafts, seconds * 1.001) is not None


def test_a_plan_that_does_not_fit_has_no_price():
    plan = placed(template("1x6", 2, (16,)), composition=COMPOSITION)
    prices = ExactPrices(workload(32), COMPOSITION, demo_profile())
    assert prices.priced(drafts_of(plan, COMPOSITION)) is None
    odd = placed(template("2x6", 4, (8,)), composition=COMPOSITION)
    assert (
        ExactPrices(workload(31), COMPOSITION, demo_profile()).priced(drafts_of(odd, COMPOSITION))
        is None
    )


def test_a_slower_network_card_of_a_node_counts():
    plan = placed(template("2x6", 2, (8, 8)), composition=nodes("fast-0:2 fast-1:2"))
    slow = nodes("fast-0:2 fast-1:2")
    slow = replace(slow, nodes=tuple(replace(node, nic_bytes_per_s=1e6) for node in slow.nodes))
    found = ExactPrices(workload(32), slow, demo_profile()).priced(drafts_of(plan, slow))
    exact = price(plan, workload(32), slow, demo_profile())
    assert found.seconds == pytest.approx(exact.iteration_s, rel=1e-12)
    assert (
        exact.sync_s > price(plan, workload(32), nodes("fast-0:2 fast-1:2"), demo_profile()).sync_s
    )
