"""Buffers of the best plans, and plans that are repeated."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from planner.policy.environment import Choice, Constructions
from planner.policy.rollouts import UniformChooser, play
from planner.training.imitation import Buffers, replay
from planner.training.torch_network import as_network, initial_weights

DEEP = (Choice(2, ((0, 0), (0, 1))),)
SHALLOW = (Choice(1, ((0, 0),)),)
FILLED = (Choice(1, ((0, 0),), (1, 0, 2)),)


def test_a_buffer_keeps_the_best_of_each_depth():
    buffers = Buffers(np.zeros((1, 2)))
    for throughput, script in ((5.0, DEEP), (4.0, DEEP), (6.0, SHALLOW), (0.0, SHALLOW)):
        buffers.offer(0, throughput, script)
    assert buffers.best(0) == 6.0
    assert sorted(buffers.around([0])) == [(0, 5 / 6, DEEP), (0, 1.0, SHALLOW)]


def test_the_best_script_is_that_of_the_highest_throughput_and_of_equal_ones_the_shallowest():
    buffers = Buffers(np.zeros((3, 2)))
    for c, throughput, script in ((0, 5.0, DEEP), (0, 4.0, SHALLOW), (1, 5.0, DEEP)):
        buffers.offer(c, throughput, script)
    buffers.offer(1, 5.0, SHALLOW)
    assert [buffers.best_script(c) for c in range(3)] == [DEEP, SHALLOW, ()]


def test_plans_of_the_most_similar_compositions_are_imitated_too():
    buffers = Buffers(np.array([[0.0], [0.1], [0.2], [9.0]]))
    for c in range(4):
        buffers.offer(c, 1.0, SHALLOW)
    assert {c for c, _, _ in buffers.around([0])} == {0, 1, 2}


def test_buffers_survive_their_file():
    buffers, again = (Buffers(np.zeros((2, 1))) for _ in range(2))
    buffers.offer(1, 3.0, DEEP)
    buffers.offer(0, 3.0, FILLED)
    again.restore(json.loads(json.dumps(buffers.to_json())))
    assert again.around([1]) == buffers.around([1])
    assert again.around([0])[0] == (0, 1.0, FILLED)


def test_equally_fast_plans_are_imitated_in_the_same_order_before_and_after_a_file():
    buffers, again = (Buffers(np.zeros((1, 1))) for _ in range(2))
    buffers.offer(0, 3.0, DEEP)
    buffers.offer(0, 3.0, SHALLOW)
    again.restore(json.loads(json.dumps(buffers.to_json())))
    assert again.around([0]) == buffers.around([0])


@pytest.mark.parametrize("learns_fill", [False, True])
def test_a_plan_is_repeated_decision_by_decision(curriculum, learns_fill):
    schema = replace(curriculum.schema, learns_fill=learns_fill)
    curriculum = replace(curriculum, schema=schema)
    environment = curriculum.environment(curriculum.training[0])
    constructions = Constructions([environment], 16)
    play(constructions, UniformChooser(np.random.default_rng(1)))
    rows = [row for row in range(16) if constructions.throughput[row] > 0]
    assert rows
    network = as_network(initial_weights(curriculum.schema, 0), uses_film=True)
    scripts = [constructions.decisions(row) for row in rows]
    records, throughput = replay([environment] * len(rows), scripts, network)
    assert np.allclose(throughput, constructions.throughput[rows])
    stages = sum(choice.depth for script in scripts for choice in script)
    assert len(records.stage_row) == stages
    chosen = [one.choice.tolist() for one in records.fill]
    if learns_fill:
        templates = sum(len(script) for script in scripts)
        assert len(chosen[0]) == stages - templates  # the last stage takes the rest
        wanted = [choice.fill[-1] for script in scripts for choice in script]
        assert sorted(chosen[2]) == sorted(wanted)
    else:
        assert chosen == []


def test_a_plan_that_cannot_be_repeated_is_worth_nothing(curriculum):
    environment = curriculum.environment(curriculum.training[0])
    network = as_network(initial_weights(curriculum.schema, 0), uses_film=True)
    _, throughput = replay([environment], [(Choice(6, ((99, 0),) * 6),)], network)
    assert throughput[0] == 0
