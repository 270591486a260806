"""The client of agents, against a server that answers as worker/contract.py says."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from aiohttp import web
from pydantic import PrivateAttr

from heddle_operator.controller import agents as agents_module
from heddle_operator.controller.agents import (
    REPORT_BURST,
    REPORT_PAUSE_S,
    Agents,
)
from heddle_operator.ports.trigger import Trigger
from tests.unit.heddle_operator.controller.agent_server import (
    TOKEN,
    Server,
    directive,
    pod,
    run,
    until,
)
from worker.contract import (
    Directive,
    Halt,
    RankReport,
    Report,
)


def test_a_report_becomes_a_view_and_each_change_wakes():
    async def test(agents, trigger, server, address):
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        server.change()
        await until(trigger, lambda: agents.views["p"].report.version == 2)
        assert agents.views["p"].unreachable_since_s is None

    run(test)


def test_an_agent_that_does_not_answer_is_unreachable_and_its_last_report_is_kept():
    async def test(agents, trigger, server, address):
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        await server.runner.cleanup()
        await until(trigger, lambda: agents.views["p"].unreachable_since_s is not None)
        assert agents.views["p"].report.version == 1

    run(test)


def test_an_agent_that_holds_nothing_back_is_asked_no_more_often_than_others():
    async def test(agents, trigger, server, address):
        told = asyncio.Semaphore(0)

        async def at_once(request):
            server.version += 1
            told.release()
            report = Report(
                job="tiny", pod="p", node="n", version=server.version, agent_pid=1,
                agent_started_s=0.0, ready=True,
            )  # fmt: skip
            return web.Response(text=report.model_dump_json())

        server.answers = at_once
        began_s = time.monotonic()
        agents.watch([pod(address)])
        for _ in range(REPORT_BURST + 5):
            await told.acquire()
        assert time.monotonic() - began_s > 4 * REPORT_PAUSE_S - 0.05

    run(test)


@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_leads_the_operator_nowhere(status):
    async def test(agents, trigger, server, address):
        other = Server()
        elsewhere = await other.start()
        server.says = (status, "")
        server.location = f"http://{elsewhere}/v1/report"
        try:
            agents.watch([pod(address)])
            await until(trigger, lambda: "p" in agents.views)
            assert f"HTTP {status}" in agents.views["p"].problem
            assert other.waits_s == []
        finally:
            await other.runner.cleanup()

    run(test)


def test_a_pod_that_is_gone_leaves_no_view():
    async def test(agents, trigger, server, address):
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        agents.watch([])
        assert agents.views == {}

    run(test)


def test_a_directive_is_sent_once_however_often_it_is_decided():
    async def test(agents, trigger, server, address):
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        for _ in range(3):
            agents.send("p", directive(1))
        await until(trigger, lambda: agents.views["p"].report.version == 2)
        agents.send("p", directive(2))
        await until(trigger, lambda: agents.views["p"].report.version == 3)
        assert [d.epoch for d in server.directives] == [1, 2]

    run(test)


class CountedDirective(Directive):
    """Counts how often it was written."""

    _written: list[None] = PrivateAttr(default_factory=list)

    def model_dump_json(self, **options):
        self._written.append(None)
        return super().model_dump_json(**options)


def test_a_directive_of_many_pods_is_written_once_however_often_it_is_decided():
    async def test(agents, trigger, server, address):
        pods = [pod(address), replace(pod(address), name="q")]
        agents.watch(pods)
        sent = CountedDirective(**dict(directive(1)))
        for _ in range(3):
            for each in pods:
                agents.send(each.name, sent)
        await until(trigger, lambda: len(server.directives) == 2)
        assert len(sent._written) == 1

    run(test)


@pytest.mark.parametrize(("reads_columns", "encoding"), [(True, "gzip"), (False, "identity")])
def test_an_agent_gets_the_form_that_it_reads(reads_columns, encoding):
    async def test(agents, trigger, server, address):
        server.reads_columns = reads_columns
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        agents.send("p", directive(1))
        await until(trigger, lambda: agents.views["p"].report.version == 2)
        assert (server.directives, server.encodings) == ([directive(1)], [encoding])

    run(test)


def test_a_refusal_is_said_and_the_view_goes_on(caplog):
    async def test(agents, trigger, server, address):
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        server.refuses = (409, "too old")
        agents.send("p", directive(1))
        while "too old" not in caplog.text:  # noqa: ASYNC110 - a log line is no event
            await asyncio.sleep(0)
        server.change()
        await until(trigger, lambda: agents.views["p"].report.version == 2)
        assert agents.views["p"].refusal == "", "the agent follows something newer"

    run(test)


def test_of_a_refusal_that_is_very_long_the_beginning_is_kept(caplog):
    async def test(agents, trigger, server, address):
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        server.refuses = (400, "x" * 100_000)
        agents.send("p", directive(1))
        await until(trigger, lambda: agents.views["p"].refusal == "x" * 1024)
        assert len(caplog.text) < 4096

    run(test)


def test_of_an_error_that_is_very_long_the_beginning_is_kept():
    async def test(agents, trigger, server, address):
        values = {"slot": 0, "pid": 1, "started_s": 0.0, "phase": "halted"}
        server.ranks = (RankReport(**values, error="x" * 100_000, part="y" * 100_000),)
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views and agents.views["p"].report)
        rank = agents.views["p"].report.ranks[0]
        assert (rank.error, rank.part) == ("x" * 1024, "y" * 1024)

    run(test)


def test_what_an_agent_finds_wrong_is_in_its_view_until_it_accepts_a_directive():
    async def test(agents, trigger, server, address):
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        server.refuses = (400, "output '/w' cannot be written")
        agents.send("p", directive(1))
        await until(trigger, lambda: agents.views["p"].refusal == "output '/w' cannot be written")
        server.change()
        await until(trigger, lambda: agents.views["p"].report.version == 2)
        assert agents.views["p"].refusal, "a report alone does not take it back"
        server.refuses = None
        agents.send("p", directive(2))
        await until(trigger, lambda: agents.views["p"].refusal == "")

    run(test)


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        ((404, "not found"), "its agent answers HTTP 404 to GET /v1/report; give workers and"),
        ((401, "who?"), "its agent answers HTTP 401: it was started with another token"),
        ((200, '{"job": "tiny"}'), "its agent is of another version: pod: Field required; give"),
    ],
)
def test_an_agent_that_is_not_understood_is_a_problem_in_words(says, sentence):
    async def story(agents, trigger, server, address):
        server.says = says
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        assert agents.views["p"].problem.startswith(sentence)
        server.says = None
        await until(trigger, lambda: agents.views["p"].report is not None)
        assert agents.views["p"].problem == ""

    run(story)


def test_an_agent_is_told_once_that_the_job_has_ended():
    async def test(agents, trigger, server, address):
        agents.end("p")  # nobody is there yet
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        for _ in range(3):
            agents.end("p")
        await until(trigger, lambda: server.ends)
        assert (server.ends, server.directives) == (1, [])

    run(test)


def test_a_halt_is_sent_once_for_each_epoch():
    async def test(agents, trigger, server, address):
        agents.halt("p", Halt(epoch=1, reason="nobody is there yet"))
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        for epoch in (1, 1, 2):
            agents.halt("p", Halt(epoch=epoch, reason="rank 0 on a fell silent"))
        await until(trigger, lambda: len(server.halts) == 2)
        assert sorted(halt.epoch for halt in server.halts) == [1, 2]

    run(test)


def test_an_agent_whose_rank_beats_late_is_asked_more_often():
    async def test(agents, trigger, server, address):
        values = {"slot": 0, "pid": 1, "started_s": 0.0, "phase": "training"}
        server.ranks = (RankReport(**values, beat_age_s=3.0),)
        agents.watch([pod(address)])
        while len(server.waits_s) < 2:
            await trigger.wait(5.0)
        assert server.waits_s[:2] == [2.5, 0.5]

    run(test)


def test_silence_counts_from_the_last_answer_but_not_while_the_operator_was_held_up():
    async def test(agents, trigger, server, address):
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        heard_s = agents.views["p"].heard_s
        agents.views["p"] = replace(agents.views["p"], heard_s=heard_s - 3600)
        await server.runner.cleanup()
        await until(trigger, lambda: agents.views["p"].unreachable_since_s is not None)
        since_s = agents.views["p"].unreachable_since_s
        assert heard_s - 6 <= since_s <= time.monotonic()

    run(test)


def test_two_answers_may_get_lost_within_the_peer_timeout():
    agents = Agents(TOKEN, Trigger(), 5.0, peer_timeout_s=2.0)
    assert 2 * agents._allowed_s <= 2.0


def test_without_a_lease_agents_are_told_nothing():
    async def test(agents, trigger, server, address):
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        agents._left_s = lambda: 0.0
        agents.end("p")
        await agents._sending.finish()
        agents._sent.clear()
        agents._left_s = lambda: 60.0
        agents.end("p")
        await until(trigger, lambda: server.ends)
        assert server.ends == 1

    run(test)


def test_messages_of_long_ago_are_not_remembered(monkeypatch):
    monkeypatch.setattr(agents_module, "SENT_KEPT", 8)

    async def test(agents, trigger, server, address):
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        agents._sent = {("p", epoch, "switch"): 0.0 for epoch in range(1000)}
        agents.end("p")
        assert list(agents._sent) == [("p", 0, "end")]
        agents.watch([])
        assert agents._sent == {}

    run(test)


def test_a_defect_in_what_is_made_of_a_report_ends_no_watch(monkeypatch, caplog):
    monkeypatch.setattr(agents_module, "RETRY_S", (0.01, 0.01))

    async def test(agents, trigger, server, address):
        breaks = [SystemError("a defect")] * 3

        def on_report(report):
            if breaks:
                raise breaks.pop()

        agents._on_report = on_report
        agents.watch([pod(address)])
        await until(trigger, lambda: not breaks and is_heard(agents))
        assert caplog.text.count("agent of p is followed anew") == 1

    def is_heard(agents):
        return "p" in agents.views and agents.views["p"].unreachable_since_s is None

    run(test)
