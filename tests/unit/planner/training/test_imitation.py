"""Buffers of the best plans, and plans that are repeated."""

from __future__ import annotations

import copy

import numpy as np

from planner.policy.environment import Episodes
from planner.policy.rollouts import UniformActor, play
from planner.training.imitation import (
    Buffers,
    DemonstratingActor,
    decisions_of,
    replay,
)
from planner.training.teacher import teach
from tests.unit.planner.policy.conftest import untrained

DEEP = ((0, 1),)
SHALLOW = ((0,),)


def test_a_buffer_keeps_the_best_of_each_depth():
    buffers = Buffers(np.zeros((1, 2)))
    for throughput, plan in ((5.0, DEEP), (4.0, DEEP), (6.0, SHALLOW), (0.0, SHALLOW)):
        buffers.offer(0, throughput, plan)
    assert buffers.best(0) == (6.0, SHALLOW)
    assert sorted(buffers.around([0])) == [(0, 5 / 6, DEEP), (0, 1.0, SHALLOW)]


def test_the_best_plan_is_that_of_the_highest_throughput_and_of_equal_ones_the_shallowest():
    buffers = Buffers(np.zeros((3, 2)))
    for c, throughput, plan in ((0, 5.0, DEEP), (0, 4.0, SHALLOW), (1, 5.0, DEEP)):
        buffers.offer(c, throughput, plan)
    buffers.offer(1, 5.0, SHALLOW)
    assert [buffers.best(c)[1] for c in range(3)] == [DEEP, SHALLOW, ()]


def test_plans_of_the_most_similar_compositions_are_imitated_too():
    buffers = Buffers(np.array([[0.0], [0.1], [0.2], [9.0]]))
    for c in range(4):
        buffers.offer(c, 1.0, SHALLOW)
    assert {c for c, _, _ in buffers.around([0])} == {0, 1, 2}


def test_equally_fast_plans_are_imitated_in_the_same_order_before_and_after_a_file():
    buffers, again = (Buffers(np.zeros((1, 1))) for _ in range(2))
    buffers.offer(0, 3.0, DEEP)
    buffers.offer(0, 3.0, SHALLOW)
    again.held = copy.deepcopy(buffers.held)
    assert again.around([0]) == buffers.around([0])


def test_a_plan_that_cannot_be_repeated_is_worth_nothing(curriculum):
    environment = curriculum.environment(curriculum.training[0])
    network = untrained(curriculum.schema)
    _, throughput = replay([environment], [((0,) * 99,)], network)
    assert throughput[0] == 0


def test_a_plan_is_repeated_decision_by_decision(curriculum):
    environment = curriculum.environment(curriculum.training[0])
    episodes = Episodes([environment], 16)
    play(episodes, UniformActor(np.random.default_rng(1)))
    rows = [row for row in range(16) if episodes.throughput[row] > 0]
    assert rows
    network = untrained(curriculum.schema)
    plans = [episodes.templates(row) for row in rows]
    records, throughput = replay([environment] * len(rows), plans, network)
    assert np.allclose(throughput, episodes.throughput[rows])
    stages = sum(len(options) for plan in plans for options in plan)
    assert len(records.context) == stages


def test_an_impossible_choice_is_marked_and_another_is_taken(curriculum):
    environment = curriculum.environment(curriculum.training[0])
    network = untrained(curriculum.schema)
    taught = teach(environment.pricing.tables, environment.limits, 50, 0)
    possible = [*decisions_of(environment, taught.templates)]
    decisions = (possible, [possible[0], 99, *possible[2:]], [99])
    episodes = Episodes([environment], len(decisions))
    actor = DemonstratingActor(network, episodes, [iter(row) for row in decisions])
    play(episodes, actor)
    assert actor.went_wrong.tolist() == [False, True, True]
    for made in actor.records().decisions:
        assert made.mask[np.arange(len(made.choice)), made.choice].all()
