"""worker/agent/agent.py: how a pod ends when its job has, and whose step records it keeps."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from aiohttp import ClientSession, web

from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from tests.unit.worker.changes import change
from worker.agent.agent import Agent, AgentSettings
from worker.agent.compute_times import STEPS
from worker.agent.http import application
from worker.agent.processes import Process
from worker.contract import RankReport
from worker.control.messages import Reported, Stepped

SETTINGS = AgentSettings(
    job="tiny", pod="tiny-a-0", node="a", gpus=2, host="127.0.0.1", token="secret"
)
ONE = FilledTemplate((Stage(gpu_type="demo-fast", tp=1, layers=2),), 1, (1,))


def plan_of(*slots):
    """One replica on each of these GPUs of the pod."""
    placed = tuple(PlacedStage(i, 0, 0, "a", (slot,)) for i, slot in enumerate(slots))
    return Plan((ONE,) * len(slots), placed)


def agent_with(*ranks, plans):
    """An agent told `plans`, from epoch 1 on, and its (slot, epoch, phase) ranks.

    No process runs: the agent knows only what they said.
    """
    agent = Agent(SETTINGS)
    for epoch, plan in enumerate(plans, start=1):
        agent.directives.add(change(None, plan, epoch=epoch))
    for key, (slot, epoch, phase) in enumerate(ranks):
        process = Process(slot=slot, writer=None)
        said = RankReport(slot=slot, pid=10 + slot, started_s=0.0, phase=phase, epoch=epoch)
        agent.heard(process, Reported(rank=said))
        agent.processes._by_key[key] = process
    return agent


def asked_to_end(*ranks, plans, token="secret"):
    """HTTP status, and the agent after somebody said PUT /v1/end."""

    async def main():
        agent = agent_with(*ranks, plans=plans)
        runner = web.AppRunner(application(agent))
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/end"
            head = {"Authorization": f"Bearer {token}"}
            async with ClientSession(headers=head) as client, client.put(url) as answer:
                return answer.status, agent.stopping.is_set(), agent.exit_code
        finally:
            await runner.cleanup()

    return asyncio.run(main())


BOTH = plan_of(0, 1)


@pytest.mark.parametrize(
    ("ranks", "plans", "code"),
    [
        ([(0, 1, "done"), (1, 1, "done")], [BOTH], 0),
        ([], [BOTH], 0),
        ([(0, 1, "done"), (1, 1, "halted")], [BOTH], 1),
        ([(0, 1, "done"), (1, 1, "saving")], [BOTH], 1),
        ([(0, 1, "training")], [BOTH], 1),
        ([(0, 1, "done")], [BOTH], 1),
        ([(0, 2, "done")], [BOTH, plan_of(0)], 0),
        ([(0, 1, "done"), (1, None, "prepared")], [plan_of(0), BOTH], 0),
        ([(0, 2, "left")], [plan_of(0), plan_of(1)], 1),
    ],
    ids=[
        "all done",
        "no rank ever",
        "one halted",
        "one saves",
        "one trains",
        "one died",
        "the one that died is not in the last plan",
        "one waits to join",
        "the rank that took over died",
    ],
)
def test_the_pod_ends_with_0_only_if_its_ranks_of_the_last_plan_are_done(ranks, plans, code):
    assert asked_to_end(*ranks, plans=plans) == (200, True, code)


def test_nobody_without_the_token_ends_a_pod():
    assert asked_to_end((0, 1, "done"), plans=[plan_of(0)], token="guessed") == (401, False, 0)


def step(agent, slot, epoch, index):
    process = next(p for p in agent.processes.ranks if p.slot == slot)
    record = {"epoch": epoch, "step": index, "loss": 1.0, "gradient_norm": 1.0}
    record |= {"start_s": 0.0, "end_s": 0.5}
    agent.heard(process, Stepped(record=record, compute_s=0.1 * (slot + 1)))


def test_steps_are_those_of_a_rank_that_trains_whatever_waits_in_a_lower_slot():
    async def main():
        agent = agent_with((0, None, "prepared"), (1, 1, "training"), plans=[plan_of(1)])
        for index in range(3):
            step(agent, 1, 1, index)
        return agent.report()

    report = asyncio.run(main())
    assert [record.step for record in report.steps] == [0, 1, 2]
    assert {rank.slot: rank.step for rank in report.ranks} == {0: 0, 1: 3}


def test_each_step_is_kept_once_and_again_if_a_later_epoch_trains_it_again():
    async def main():
        agent = agent_with((0, 1, "training"), (1, 1, "training"), plans=[BOTH, BOTH])
        for index in range(2):
            for slot in (1, 0):
                step(agent, slot, 1, index)
        step(agent, 0, 2, 1)
        return [(record.epoch, record.step) for record in agent.report().steps]

    assert asyncio.run(main()) == [(1, 0), (1, 1), (2, 1)]


def test_each_rank_tells_its_own_computing_time_once_enough_steps_of_its_epoch_are_measured():
    async def main():
        agent = agent_with((0, 1, "training"), (1, 1, "training"), plans=[BOTH])
        before = []
        for index in range(STEPS):
            before = agent.report().ranks
            for slot in (0, 1):
                step(agent, slot, 1, index)
        return before, agent.report().ranks

    before, after = asyncio.run(main())
    assert [rank.compute_s for rank in before] == [None, None]
    assert [rank.compute_s for rank in after] == [0.1, 0.2]


def test_a_pod_reports_the_wire_of_its_ranks():
    async def main():
        return Agent(replace(SETTINGS, wire="staged")).report().wire, Agent(SETTINGS).report().wire

    assert asyncio.run(main()) == ("staged", "gloo")
