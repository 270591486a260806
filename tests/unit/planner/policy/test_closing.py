"""What a template that does not fit means, and what a closed one leaves."""

from __future__ import annotations

import numpy as np

from planner.policy.environment import Constructions
from planner.policy.schema import FeatureSchema
from tests.unit.planner.policy.conftest import environment_on

SCHEMA = FeatureSchema(("h100",), (1, 2, 4, 8), 24, 8)


def build(constructions, *stages):
    """One template of these degrees on the first node class, in row 0."""
    row = np.array([0])
    constructions.open(row, np.array([len(stages)]))
    for tp in stages:
        constructions.place(row, np.array([0]), np.array([SCHEMA.tp_degrees.index(tp)]))
    constructions.close(row)


def test_a_first_template_that_does_not_fit_ends_without_a_plan():
    constructions = Constructions([environment_on("h100=1x4", SCHEMA)], 1)
    build(constructions, 1)  # all of LLaMA-3-8B on one GPU
    assert not len(constructions.live)
    assert constructions.throughput[0] == 0


def test_a_later_template_that_does_not_fit_ends_at_the_plan_so_far():
    constructions = Constructions([environment_on("h100=2x4+1x1", SCHEMA)], 1)
    build(constructions, 4, 4)
    before = constructions.throughput[0]
    assert before > 0
    row = np.array([0])
    constructions.open(row, np.array([1]))
    constructions.place(row, np.array([0]), np.array([0]))
    constructions.close(row)
    assert constructions.throughput[0] == before
    assert len(constructions.decisions(0)) == 1
    assert not len(constructions.live)


def test_a_closed_template_takes_the_gpus_of_all_its_replicas():
    constructions = Constructions([environment_on("h100=3x4", SCHEMA)], 1)
    build(constructions, 4)
    view = constructions.observe_depths(np.array([0]))
    assert constructions.throughput[0] > 0
    assert view.mask[0].sum() in (1, 5)  # STOP alone, or one node left where two are faster


def test_plans_on_the_way_are_kept_too():
    constructions = Constructions([environment_on("h100=4x4", SCHEMA)], 1)
    build(constructions, 4, 4)
    assert constructions.elites[0].number[0] == 1
    assert np.isclose(constructions.best[0], constructions.throughput[0])
