"""Buffers of the best plans, and plans that are repeated."""

from __future__ import annotations

import json

import numpy as np

from planner.policy.environment import Choice, Episodes
from planner.policy.rollouts import UniformActor, play
from planner.training.imitation import (
    Buffers,
    DemonstratingActor,
    read_trajectory,
    replay,
    templates_from,
    trajectory_from,
)
from planner.training.torch_network import as_network, initial_weights

DEEP = (Choice(2, ((0, 0), (0, 1))),)
SHALLOW = (Choice(1, ((0, 0),)),)


def test_a_buffer_keeps_the_best_of_each_depth():
    buffers = Buffers(np.zeros((1, 2)))
    for throughput, trajectory in ((5.0, DEEP), (4.0, DEEP), (6.0, SHALLOW), (0.0, SHALLOW)):
        buffers.offer(0, throughput, trajectory)
    assert buffers.best(0) == (6.0, SHALLOW)
    assert sorted(buffers.around([0])) == [(0, 5 / 6, DEEP), (0, 1.0, SHALLOW)]


def test_the_best_trajectory_is_that_of_the_highest_throughput_and_of_equal_ones_the_shallowest():
    buffers = Buffers(np.zeros((3, 2)))
    for c, throughput, trajectory in ((0, 5.0, DEEP), (0, 4.0, SHALLOW), (1, 5.0, DEEP)):
        buffers.offer(c, throughput, trajectory)
    buffers.offer(1, 5.0, SHALLOW)
    assert [buffers.best(c)[1] for c in range(3)] == [DEEP, SHALLOW, ()]


def test_plans_of_the_most_similar_compositions_are_imitated_too():
    buffers = Buffers(np.array([[0.0], [0.1], [0.2], [9.0]]))
    for c in range(4):
        buffers.offer(c, 1.0, SHALLOW)
    assert {c for c, _, _ in buffers.around([0])} == {0, 1, 2}


def test_buffers_survive_their_file():
    buffers, again = (Buffers(np.zeros((2, 1))) for _ in range(2))
    buffers.offer(1, 3.0, DEEP)
    buffers.offer(0, 3.0, SHALLOW)
    again.restore(json.loads(json.dumps(buffers.to_json())))
    assert again.around([1]) == buffers.around([1])
    assert again.around([0])[0] == (0, 1.0, SHALLOW)


def test_equally_fast_plans_are_imitated_in_the_same_order_before_and_after_a_file():
    buffers, again = (Buffers(np.zeros((1, 1))) for _ in range(2))
    buffers.offer(0, 3.0, DEEP)
    buffers.offer(0, 3.0, SHALLOW)
    again.restore(json.loads(json.dumps(buffers.to_json())))
    assert again.around([0]) == buffers.around([0])


def test_a_plan_that_cannot_be_repeated_is_worth_nothing(curriculum):
    environment = curriculum.environment(curriculum.training[0])
    network = as_network(initial_weights(curriculum.schema, 0), uses_film=True)
    _, throughput = replay([environment], [(Choice(6, ((99, 0),) * 6),)], network)
    assert throughput[0] == 0


def test_a_plan_is_repeated_decision_by_decision(curriculum):
    environment = curriculum.environment(curriculum.training[0])
    episodes = Episodes([environment], 16)
    play(episodes, UniformActor(np.random.default_rng(1)))
    rows = [row for row in range(16) if episodes.throughput[row] > 0]
    assert rows
    network = as_network(initial_weights(curriculum.schema, 0), uses_film=True)
    trajectories = [episodes.decisions(row) for row in rows]
    records, throughput = replay([environment] * len(rows), trajectories, network)
    assert np.allclose(throughput, episodes.throughput[rows])
    stages = sum(choice.depth for trajectory in trajectories for choice in trajectory)
    assert len(records.stage_row) == stages


def test_an_impossible_choice_is_marked_and_another_is_taken(curriculum):
    environment = curriculum.environment(curriculum.training[0])
    network = as_network(initial_weights(curriculum.schema, 0), uses_film=True)
    trajectories = (SHALLOW, (Choice(1, ((99, 0),)),), (Choice(1, ()),))
    episodes = Episodes([environment], len(trajectories))
    actor = DemonstratingActor(network, episodes, trajectories)
    play(episodes, actor)
    assert actor.went_wrong.tolist() == [False, True, True]
    records = actor.records()
    assert records.device_mask[np.arange(len(records.device)), records.device].all()
    assert records.degree_mask[np.arange(len(records.degree)), records.degree].all()


def test_a_trajectory_survives_its_file():
    assert read_trajectory(json.loads(json.dumps(DEEP + SHALLOW))) == DEEP + SHALLOW


def test_templates_of_a_trajectory_are_those_it_was_made_from(curriculum):
    environment = curriculum.environment(curriculum.training[0])
    options = len(environment.space.tp)
    templates = (tuple(range(options)), (options - 1, 0))
    assert templates_from(environment, trajectory_from(environment, templates)) == templates
