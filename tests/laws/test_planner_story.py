"""The demo's story: what the planner answers as nodes of the emulated types come and go."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from planner.composition import Composition
from planner.cost import price
from planner.plan import Plan
from planner.request import PlanAnswer, PlanRequest
from planner.search import search
from tests.builders import demo_profile, nodes, workload

FAST_0, FAST_1, FAST_2, SLOW = "fast-0:2", "fast-1:3", "fast-2:2", "slow-0:1"
MIN_GAIN = 0.02
MOST_RANKS = 8


@dataclass(frozen=True)
class Story:
    """The answers in order; a gain below 2 % is not adopted."""

    start: PlanAnswer
    joined: PlanAnswer
    slow: PlanAnswer
    grown: PlanAnswer
    drained: PlanAnswer
    lost: PlanAnswer


def ask(text: str, current: Plan | None = None) -> PlanAnswer:
    request = PlanRequest(workload(), nodes(text), current, seed=1, min_holders=2)
    return search(request, demo_profile())


@pytest.fixture(scope="module")
def story() -> Story:
    start = ask(FAST_0)
    joined = ask(f"{FAST_0} {FAST_1}", start.plan)
    slow = ask(f"{FAST_0} {FAST_1} {SLOW}", joined.plan)
    grown = ask(f"{FAST_0} {FAST_1} {SLOW} {FAST_2}", joined.plan)
    drained = ask(f"{FAST_1} {SLOW} {FAST_2}", grown.plan)
    return Story(start, joined, slow, grown, drained, ask(f"{SLOW} {FAST_2}", drained.plan))


def gain(answer: PlanAnswer, current: Plan, composition: Composition) -> float:
    before = price(current, workload(), composition, demo_profile())
    return answer.throughput_samples_s / before.throughput_samples_s - 1


def test_a_joining_node_changes_tp_depth_and_number_of_templates(story):
    before, after = story.start.plan, story.joined.plan
    assert before.tp_degrees != after.tp_degrees
    assert {len(t.stages) for t in before.templates} != {len(t.stages) for t in after.templates}
    assert len(after.templates) > len(before.templates)
    assert after.gpus == 5


def test_each_fast_node_pays_and_the_slow_one_does_not(story):
    five, six = nodes(f"{FAST_0} {FAST_1}"), nodes(f"{FAST_0} {FAST_1} {SLOW}")
    eight = nodes(f"{FAST_0} {FAST_1} {SLOW} {FAST_2}")
    assert gain(story.joined, story.start.plan, five) > 0.5
    assert 0 <= gain(story.slow, story.joined.plan, six) < MIN_GAIN
    assert gain(story.grown, story.joined.plan, eight) > 0.2


def test_every_piece_has_two_holders_wherever_two_fast_nodes_are(story):
    assert story.start.holders_min == 1
    assert story.start.notes
    for answer in (story.joined, story.slow, story.grown, story.drained):
        assert answer.holders_min >= 2
        assert not answer.notes


def test_the_state_survives_the_drain_and_the_loss(story):
    for before, after, gone in (
        (story.grown, story.drained, "fast-0"),
        (story.drained, story.lost, "fast-1"),
    ):
        assert gone in before.plan.nodes
        assert gone not in after.plan.nodes
        assert before.holders_min >= 2


def test_steps_are_long_enough_to_emulate_and_short_enough_to_watch(story):
    assert 0.4 < story.start.simulation_s < 0.9
    assert 0.2 < story.grown.simulation_s < 0.4
    for answer in (story.start, story.joined, story.slow, story.grown, story.drained, story.lost):
        assert answer.plan.gpus <= MOST_RANKS


def test_a_whole_replica_never_fits_on_one_gpu(story):
    for answer in (story.start, story.joined, story.slow, story.grown, story.drained, story.lost):
        assert all(template.gpus >= 2 for template in answer.plan.templates)
