"""The planner process answers plans and problems, and a crashed one is started again."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.controller.planner_client import PlannerClient
from heddle_operator.controller.planner_server import SearchSettings
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.actions import RequestPlan
from planner.cluster.composition import Composition, Node
from planner.plans.plan import faults
from planner.profiles.profile import load_profile
from planner.request import PlanRequest
from planner.search.driver import search

SETTINGS = SearchSettings(
    model="tiny-llama",
    global_batch=32,
    sequence_length=128,
    seed=3,
    min_holders=2,
    budget_evaluations=100,
)
TWO = Composition(
    (Node(name="a", gpu_type="demo-fast", gpus=1), Node(name="b", gpu_type="demo-fast", gpus=1))
)
THREE = Composition((*TWO.nodes, Node(name="c", gpu_type="demo-fast", gpus=1)))


def run(test):
    async def main():
        trigger = Trigger()
        planning = PlannerClient(SETTINGS, trigger)
        try:
            await asyncio.wait_for(test(planning, trigger), 60)
        finally:
            await planning.close()

    asyncio.run(main())


async def reply(planning, trigger, request):
    planning.request(request)
    assert planning.in_flight == {request.key}
    while request.key not in planning.replies:
        await trigger.wait(30)
    return planning.replies[request.key]


@pytest.mark.slow
def test_an_answer_is_what_the_planner_answers_for_the_same_request():
    async def test(planning, trigger):
        first = await reply(planning, trigger, RequestPlan(TWO, None))
        assert first.plan is not None
        assert faults(first.plan, SETTINGS.workload, TWO) == ()
        assert first.current_samples_s is None
        second = await reply(planning, trigger, RequestPlan(THREE, first.plan))
        asked = PlanRequest(
            workload=SETTINGS.workload,
            composition=THREE,
            current=first.plan,
            seed=3,
            min_holders=2,
            budget_evaluations=100,
        )
        assert second.plan == search(asked, load_profile("tiny-llama")).plan
        assert second.throughput_samples_s >= second.current_samples_s > 0

    run(test)


@pytest.mark.slow
def test_a_request_without_a_plan_is_answered_with_the_problem():
    async def test(planning, trigger):
        unknown = Composition((Node(name="a", gpu_type="h100", gpus=1),))
        found = await reply(planning, trigger, RequestPlan(unknown, None))
        assert found.plan is None
        assert found.problem

    run(test)


@pytest.mark.slow
def test_a_planner_that_was_killed_is_started_again():
    async def test(planning, trigger):
        await planning.start()
        await planning._pool._idle[0].kill()
        assert (await reply(planning, trigger, RequestPlan(TWO, None))).plan is not None

    run(test)


def test_a_search_follows_the_wire_of_the_ranks():
    async def test(planning, trigger):
        assert not planning.follow_wire("nccl", 1.0)
        assert planning.follow_wire("staged", 2.0)
        assert planning.repriced_s == 2.0
        assert not planning.follow_wire("staged", 3.0)

    run(test)
