"""Answers that no agent of ours gives cost the operator little, and are said."""

from __future__ import annotations

from aiohttp import web

from heddle_operator.controller.agent_answers import ANSWER_MAX_BYTES, RANKS_MOST
from tests.unit.heddle_operator.controller.agent_server import pod, run, until
from worker.contract import (
    EXITS_KEPT,
    LAPS,
    RECORDS_KEPT,
    EvaluationRecord,
    RankExit,
    RankReport,
    Report,
    StepRecord,
    SwitchRecord,
)


def test_an_answer_of_any_length_costs_the_operator_no_more_than_it_reads(monkeypatch, caplog):
    """A pod whose owner is hostile, or broken, answers for ever."""
    caplog.set_level("INFO")

    async def test(agents, trigger, server, address):
        told = 0

        async def endless(request):
            nonlocal told
            answer = web.StreamResponse()
            await answer.prepare(request)
            while told < 1 << 30:
                await answer.write(b"x" * (1 << 20))
                told += 1 << 20
            return answer

        server.answers = endless
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        assert agents.views["p"].unreachable_since_s is not None
        assert "its answer is longer than 6 MiB" in caplog.text
        assert told < 1 << 26

    run(test)


def test_no_report_is_as_long_as_what_is_refused():
    """All the records that an agent keeps, every field filled, and more ranks than a pod has."""
    kinds = {"steps": StepRecord, "switches": SwitchRecord, "evaluations": EvaluationRecord}
    laps = {"laps": dict.fromkeys(LAPS, 1e7 / 3)}
    records = {
        name: [kind.model_construct(**{f: laps.get(f, 1e7 / 3) for f in kind.model_fields})]
        * RECORDS_KEPT
        for name, kind in kinds.items()
    }
    words = "x" * 1000
    ranks = [
        RankReport(slot=n, pid=n, started_s=1 / 3, phase="training", error=words)
        for n in range(RANKS_MOST)
    ]
    exits = [RankExit(slot=n, pid=n, code=1, at_s=1 / 3, error=words) for n in range(EXITS_KEPT)]
    report = Report.model_construct(ranks=ranks, exits=exits, **records)
    assert len(report.model_dump_json(warnings=False)) < 0.9 * ANSWER_MAX_BYTES


def test_a_report_of_more_rows_than_an_agent_keeps_is_not_read():
    row = '{"slot":0,"pid":0,"code":0,"at_s":0}'
    rows = ",".join([row] * (EXITS_KEPT + 1))

    async def test(agents, trigger, server, address):
        server.says = (200, '{"job":"j","pod":"p","node":"n","version":1,"agent_pid":1,'
                       f'"agent_started_s":0,"ready":true,"exits":[{rows}]}}')  # fmt: skip
        agents.watch([pod(address)])
        await until(trigger, lambda: "p" in agents.views)
        assert agents.views["p"].report is None
        assert "exits: Tuple should have at most 64 items" in agents.views["p"].problem

    run(test)
