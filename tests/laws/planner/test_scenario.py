"""The demo's scenario: what the planner answers as nodes of the emulated types come and go."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from heddle.demo.job import GLOBAL_BATCH, demo_job
from heddle.demo.run import EVALUATIONS
from heddle.demo.scenario import NODES, SCRIPT
from planner.cluster.composition import Composition
from planner.cost.evaluate import cost_of
from planner.plans.plan import Plan
from planner.request import PlanAnswer, PlanRequest
from planner.search.driver import search
from tests.builders import demo_profile, workload

MIN_GAIN = demo_job(1, 1).spec.elastic.min_gain_percent / 100
MOST_RANKS = 5
WORKLOAD = workload(GLOBAL_BATCH)


def compositions() -> list[Composition]:
    """The nodes at the start and after each event."""
    found = [NODES]
    for event in SCRIPT:
        now = found[-1]
        joined = Composition((*now.nodes, event.node)) if event.node else now.without([event.name])
        found.append(joined)
    return found


@dataclass(frozen=True)
class Scenario:
    """The answers in order; the slow node's is not adopted."""

    start: PlanAnswer
    joined: PlanAnswer
    slow: PlanAnswer
    drained: PlanAnswer
    lost: PlanAnswer

    def adopted(self) -> tuple[PlanAnswer, ...]:
        return (self.start, self.joined, self.drained, self.lost)


def ask(composition: Composition, current: Plan | None = None) -> PlanAnswer:
    request = PlanRequest(
        workload=WORKLOAD,
        composition=composition,
        current=current,
        seed=1,
        min_holders=2,
        budget_evaluations=EVALUATIONS,
    )
    return search(request, demo_profile())


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    first, second, third, fourth, fifth = compositions()
    start = ask(first)
    joined = ask(second, start.plan)
    slow = ask(third, joined.plan)
    # a plan moves to the nodes that stay first; the slow one only pays once others are gone
    drained = ask(fourth.without(["slow-1"]), joined.plan)
    return Scenario(start, joined, slow, drained, ask(fifth.without(["slow-1"]), drained.plan))


def gain(answer: PlanAnswer, current: Plan, composition: Composition) -> float:
    before = cost_of(current, WORKLOAD, composition, demo_profile())
    return answer.throughput_samples_s / before.throughput_samples_s - 1


@pytest.mark.slow
def test_a_joining_node_changes_tp_depth_and_number_of_templates(scenario):
    before, after = scenario.start.plan, scenario.joined.plan
    assert before.tp_degrees != after.tp_degrees
    assert {s.layers for t in before.templates for s in t.stages} != {
        s.layers for t in after.templates for s in t.stages
    }
    assert len(after.templates) > len(before.templates)
    assert after.gpus == 5


def test_the_fast_node_pays_and_the_slow_one_does_not(scenario):
    assert gain(scenario.joined, scenario.start.plan, compositions()[1]) > 0.5
    assert 0.001 < gain(scenario.slow, scenario.joined.plan, compositions()[2]) < MIN_GAIN


def test_the_state_lives_on_two_nodes_where_it_can(scenario):
    assert scenario.start.holders_min == 1  # a replica does not fit on one node
    assert scenario.start.notes
    for answer in (scenario.joined, scenario.slow):
        assert answer.holders_min >= 2
        assert not answer.notes
    assert scenario.drained.notes  # nor on fast-2, so that fast-3 alone holds it all


def test_the_state_survives_the_drain_and_the_loss(scenario):
    for before, after, gone in (
        (scenario.joined, scenario.drained, "fast-1"),
        (scenario.drained, scenario.lost, "fast-2"),
    ):
        assert gone in before.plan.nodes
        assert gone not in after.plan.nodes
        assert held_without(gone, before.plan) == set(range(WORKLOAD.model.layers + 2))


def held_without(gone: str, plan: Plan) -> set[int]:
    """The layers that live on other nodes too."""
    held: set[int] = set()
    for placed in plan.placement:
        cuts = plan.templates[placed.template].layer_bounds()
        if placed.node != gone:
            held.update(range(cuts[placed.stage], cuts[placed.stage + 1]))
    return held


def test_steps_are_long_enough_to_emulate_and_short_enough_to_watch(scenario):
    assert 0.4 < scenario.start.simulation_s < 0.9
    assert 0.2 < scenario.joined.simulation_s < 0.5
    assert all(answer.plan.gpus <= MOST_RANKS for answer in scenario.adopted())


def test_a_whole_replica_never_fits_on_one_gpu(scenario):
    for answer in scenario.adopted():
        assert all(template.gpus >= 2 for template in answer.plan.templates)
