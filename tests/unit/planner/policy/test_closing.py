"""What a template that does not fit means, and what a closed one leaves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.estimator.unplaced_plan import most_replicas, new_plan
from planner.estimator.workspace import new_workspace
from planner.policy.closing import fill_last, price_last
from planner.policy.environment import Episodes
from planner.policy.schema import FeatureSchema
from tests.unit.planner.policy.conftest import environment_on

SCHEMA = FeatureSchema(("h100",), (1, 2, 4, 8), 24, 8)


def build(episodes, *stages):
    """One template of these degrees on the first node class, in row 0."""
    row = np.array([0])
    episodes.open(row, np.array([len(stages)]))
    for tp in stages:
        episodes.place(row, np.array([0]), np.array([SCHEMA.tp_degrees.index(tp)]))
    episodes.close(row)


def test_a_first_template_that_does_not_fit_ends_without_a_plan():
    episodes = Episodes([environment_on("h100=1x4", SCHEMA)], 1)
    build(episodes, 1)  # all of LLaMA-3-8B on one GPU
    assert not len(episodes.live)
    assert episodes.throughput[0] == 0


def test_a_later_template_that_does_not_fit_ends_at_the_plan_so_far():
    episodes = Episodes([environment_on("h100=2x4+1x1", SCHEMA)], 1)
    build(episodes, 4, 4)
    before = episodes.throughput[0]
    assert before > 0
    row = np.array([0])
    episodes.open(row, np.array([1]))
    episodes.place(row, np.array([0]), np.array([0]))
    episodes.close(row)
    assert episodes.throughput[0] == before
    assert len(episodes.templates(0)) == 1
    assert not len(episodes.live)


def test_a_closed_template_takes_the_gpus_of_all_its_replicas():
    episodes = Episodes([environment_on("h100=3x4", SCHEMA)], 1)
    build(episodes, 4)
    view = episodes.observe_depths(np.array([0]))
    assert episodes.throughput[0] > 0
    assert view.mask[0].sum() in (1, 5)  # STOP alone, or one node left where two are faster


def test_plans_on_the_way_are_kept_too():
    episodes = Episodes([environment_on("h100=4x4", SCHEMA)], 1)
    build(episodes, 4, 4)
    assert episodes.top_k[0].number[0] == 1
    assert np.isclose(episodes.best[0], episodes.throughput[0])


def appended(tables, *templates):
    """A plan with these templates of options, filled one by one; and its seconds."""
    plan, work = new_plan(), new_workspace(tables)
    seconds = math.inf
    for k, options in enumerate(templates):
        plan.number[0] = k + 1
        plan.depth[k] = len(options)
        plan.options[k, : len(options)] = options
        seconds = fill_last(tables, plan, work)
    return plan, work, seconds


@pytest.mark.parametrize("nodes", [3, 4, 5, 7])
@pytest.mark.parametrize("batch", [32, 64, 2048])
def test_replicas_are_the_most_or_the_power_of_two_below_whichever_is_faster(nodes, batch):
    tables = environment_on(f"h100={nodes}x4", SCHEMA, batch=batch).pricing.tables
    plan, work, seconds = appended(tables, (2,))  # one stage of TP 4
    most = int(most_replicas(tables, plan, 0))
    assert most == nodes
    power = 1 << (most.bit_length() - 1)
    chosen = int(plan.replicas[0])
    priced = {n: float(price_last(tables, plan, n, work)) for n in {most, power}}
    assert seconds == pytest.approx(min(priced.values()))
    assert priced[chosen] == pytest.approx(seconds)


def test_a_template_that_does_not_pack_is_infinitely_slow():
    tables = environment_on("h100=1x4", SCHEMA).pricing.tables
    assert appended(tables, (2, 2))[2] == math.inf


def test_the_templates_before_keep_their_stages_and_replicas():
    tables = environment_on("h100=5x4", SCHEMA).pricing.tables
    alone, _, _ = appended(tables, (2, 2))
    both, _, seconds = appended(tables, (2, 2), (1, 1))
    assert seconds < math.inf
    assert both.replicas[0] == alone.replicas[0]
    assert both.options[0, :2].tolist() == [2, 2]
