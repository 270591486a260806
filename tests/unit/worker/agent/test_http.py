"""worker/agent/http.py: who may ask an agent what, and what each mistake is answered."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from worker.agent.agent import Agent, AgentSettings
from worker.agent.http import BODY_MAX_BYTES, application
from worker.columns import compressed_directive
from worker.contract import Directive, Refusal, Report

SETTINGS = AgentSettings(
    job="tiny", pod="tiny-a-0", node="a", gpus=2, host="127.0.0.1", token="secret"
)
PLAN = Plan(
    (FilledTemplate((Stage(gpu_type="demo-fast", tp=2, layers=6),), 2, (2,)),),
    (PlacedStage(0, 0, 0, "a", (0, 1)),),
)
DIRECTIVE = {
    "job": "tiny",
    "epoch": 2,
    "phase": "prepare",
    "reason": "start",
    "plan": PLAN.to_json(),
    "plan_digest": PLAN.digest,
    "members": [
        {"pod": "tiny-a-0", "slot": slot, "node": "a", "gpu": slot, "rank": slot, "holds": None}
        for slot in (0, 1)
    ],
    "store": "127.0.0.1:1",
    "training": {
        "model": "tiny-llama",
        "data": "text",
        "global_batch": 4,
        "sequence_length": 32,
        "steps": 10,
    },
}


def with_client(ask, token="secret"):
    """What `ask(client, agent)` answers; the agent has no processes."""

    async def main():
        agent = Agent(SETTINGS)
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        async with TestClient(TestServer(application(agent)), headers=headers) as client:
            return await ask(client, agent)

    return asyncio.run(main())


def asked(method, path, token="secret", **content):
    """(status, text) of one request."""

    async def ask(client, agent):
        async with client.request(method, path, **content) as answer:
            return answer.status, await answer.text()

    return with_client(ask, token)


@pytest.mark.parametrize("token", [None, "", "guessed", "secre", "secret2", "s€cret"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v1/directive"),
        ("GET", "/v1/report"),
        ("PUT", "/v1/halt"),
        ("PUT", "/v1/end"),
    ],
)
def test_without_the_jobs_token_nothing_is_told_or_done(method, path, token):
    status, text = asked(method, path, token, json=DIRECTIVE)
    assert status == 401
    assert Refusal.model_validate_json(text).error == (
        "the bearer token is not this job's; it is in the job's Secret"
    )


@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
def test_probes_need_no_token(path):
    assert asked("GET", path, token=None)[0] == 200


@pytest.mark.parametrize("path", ["/v1/%2e%2e/v1/report", "/..%2fv1/report", "/v1/report/x"])
def test_no_other_spelling_of_a_path_is_served(path):
    async def ask(client, agent):
        url = URL(f"{client.make_url('/')}".rstrip("/") + path, encoded=True)
        async with client.session.get(url) as answer:
            return answer.status

    assert with_client(ask) == 404


def test_an_accepted_directive_is_in_the_report():
    async def ask(client, agent):
        async with client.put("/v1/directive", json=DIRECTIVE) as answer:
            assert answer.status == 200
        async with client.get("/v1/report") as answer:
            return Report.model_validate_json(await answer.text())

    report = with_client(ask)
    assert (report.epoch, report.phase, report.plan_digest) == (2, "prepare", PLAN.digest)
    assert (report.job, report.pod, report.node) == ("tiny", "tiny-a-0", "a")
    assert not report.ready


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"\xff\xfe", 400, "the body is not JSON"),
        (b"[1]", 400, "a directive is a JSON object, found a list"),
        (b"{}", 400, "job: Field required"),
        (b"[" * 100_000, 400, "the body is not JSON"),
    ],
    ids=["cut", "no text", "a list", "empty", "too deep"],
)
def test_a_body_that_is_no_directive_is_refused_in_one_sentence(body, status, sentence):
    found, text = asked("PUT", "/v1/directive", data=body)
    assert found == status
    error = Refusal.model_validate_json(text).error
    assert sentence in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "the body is not JSON"),
        (b"[1]", "a halt is a JSON object, found a list"),
        (b"{}", "epoch: Field required; a halt has an epoch and a reason"),
        (b'{"epoch": 0, "reason": "x"}', "epoch: Input should be greater than or equal to 1"),
    ],
    ids=["cut", "a list", "empty", "no epoch"],
)
def test_a_body_that_is_no_halt_is_refused_in_one_sentence(body, sentence):
    found, text = asked("PUT", "/v1/halt", data=body)
    assert found == 400
    error = Refusal.model_validate_json(text).error
    assert sentence in error
    assert "\n" not in error


def test_an_output_that_cannot_be_written_is_refused_unless_the_job_must_recover(tmp_path):
    (tmp_path / "file").touch()
    training = {**DIRECTIVE["training"], "output": str(tmp_path / "file" / "weights")}

    async def ask(client, agent):
        found = []
        for reason in ("start", "loss"):
            body = {**DIRECTIVE, "training": training, "reason": reason}
            async with client.put("/v1/directive", json=body) as answer:
                found.append((answer.status, await answer.text(), agent.directive is not None))
        return found

    (refused, text, followed), (accepted, _, follows) = with_client(ask)
    assert (refused, followed, accepted, follows) == (400, False, 200, True)
    assert "cannot be written: not a directory" in Refusal.model_validate_json(text).error


def test_a_directive_is_utf_8_whatever_its_header_claims():
    headers = {"Content-Type": "application/json; charset=klingon"}
    assert asked("PUT", "/v1/directive", data=b"{}", headers=headers)[0] == 400


@pytest.mark.parametrize(
    "second", [{"epoch": 1}, {"job": "other"}], ids=["an older epoch", "another job"]
)
def test_a_directive_out_of_turn_is_a_conflict_and_changes_nothing(second):
    async def ask(client, agent):
        async with client.put("/v1/directive", json=DIRECTIVE) as answer:
            assert answer.status == 200
        version, before = agent.version, agent.directive
        async with client.put("/v1/directive", json={**DIRECTIVE, **second}) as answer:
            assert (agent.version, agent.directive) == (version, before)
            return answer.status, Refusal.model_validate_json(await answer.text()).error

    status, error = with_client(ask)
    assert status == 409
    assert "\n" not in error


def test_the_same_directive_twice_is_no_change():
    async def ask(client, agent):
        versions = []
        for _ in range(2):
            async with client.put("/v1/directive", json=DIRECTIVE) as answer:
                assert answer.status == 200
            versions.append(agent.version)
        return versions

    first, second = with_client(ask)
    assert first == second


def test_who_waits_for_a_newer_report_gets_it_at_once():
    async def ask(client, agent):
        waiting = asyncio.ensure_future(
            client.get("/v1/report", params={"after": agent.version, "wait_s": 60})
        )
        async with client.get("/healthz"):  # an agent answers while somebody waits
            assert not waiting.done()
        agent.changed()
        async with asyncio.timeout(10), await waiting as answer:
            return Report.model_validate_json(await answer.text()).version, agent.version

    told, now = with_client(ask)
    assert told == now == 2


@pytest.mark.parametrize(
    "query", [{"after": 0, "wait_s": 60}, {"after": 1, "wait_s": 0.01}, {"after": 99}]
)
def test_a_report_is_not_held_back_for_nothing(query):
    """It is newer than asked for; or nothing came in time; or nobody wanted to wait."""
    status, text = asked("GET", "/v1/report", params=query)
    assert (status, Report.model_validate_json(text).version) == (200, 1)


@pytest.mark.parametrize(
    "query",
    [{"after": "x"}, {"wait_s": "soon"}, {"steps_from": "1.5"}],
    ids=lambda q: next(iter(q)),
)
def test_a_question_that_makes_no_sense_is_refused(query):
    status, text = asked("GET", "/v1/report", params=query)
    assert status == 400
    assert "whole numbers" in Refusal.model_validate_json(text).error


def test_the_metrics_name_job_and_pod():
    async def ask(client, agent):
        await agent.accept(DIRECTIVE)
        async with client.get("/metrics") as answer:
            assert answer.content_type == "text/plain"
            return (await answer.text()).splitlines()

    lines = with_client(ask)
    labels = '{job="tiny",pod="tiny-a-0"}'
    assert f"heddle_worker_epoch{labels} 2.0" in lines
    assert f"heddle_worker_ranks{labels} 0.0" in lines
    assert not any(line.startswith("heddle_worker_loss") for line in lines)


def test_the_end_of_the_job_stops_the_agent():
    async def ask(client, agent):
        async with client.put("/v1/end") as answer:
            return answer.status, agent.stopping.is_set(), agent.exit_code

    assert with_client(ask) == (200, True, 0)


def sent(body):
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    return asked("PUT", "/v1/directive", data=body, headers=headers)


def test_a_directive_by_column_is_accepted():
    told = Directive.model_validate(DIRECTIVE).model_dump(mode="json")
    assert sent(compressed_directive(told))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"no gzip",
        gzip.compress(b" " * (BODY_MAX_BYTES + 1)),
        gzip.compress(b'{"members": {"a": 1}}'),
    ],
    ids=["no gzip", "a bomb", "no table"],
)
def test_what_is_no_compressed_directive_is_refused(body):
    assert sent(body)[0] in (400, 413)
