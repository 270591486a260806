"""How a pod ends when its job has: well if its ranks trained the last step."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import ClientSession, web

from worker.agent.agent import Agent, AgentSettings, _Process
from worker.agent.http import application
from worker.contract import RankReport

SETTINGS = AgentSettings("tiny", "tiny-a-0", "a", 2, "127.0.0.1", "secret")


def rank(slot, phase):
    report = RankReport(slot=slot, pid=10 + slot, started_s=0.0, phase=phase)
    return _Process(slot, None, 10 + slot, report)


def asked_to_end(phases, token="secret"):
    """HTTP status, and the agent after somebody said PUT /v1/end."""

    async def main():
        agent = Agent(SETTINGS)
        agent._processes = {slot: rank(slot, phase) for slot, phase in enumerate(phases)}
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


@pytest.mark.parametrize(
    ("phases", "code"),
    [(("done", "done"), 0), ((), 0), (("done", "halted"), 1), (("training",), 1)],
    ids=["all done", "no rank", "one halted", "one trains"],
)
def test_the_pod_ends_with_0_only_if_nothing_is_left_to_train(phases, code):
    assert asked_to_end(phases) == (200, True, code)


def test_nobody_without_the_token_ends_a_pod():
    assert asked_to_end(("done",), token="guessed") == (401, False, 0)
