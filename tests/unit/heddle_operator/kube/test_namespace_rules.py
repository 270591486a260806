"""Quotas come from the cache or a refusal; a template is tried until it is taken once."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from heddle_operator.kube import namespace_rules
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import connect
from heddle_operator.kube.namespace_rules import TAUGHT_S, TRY_AGAIN_S, NamespaceRules
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.snapshot import Headroom
from tests.fakes.api_server import an_api_server

QUOTAS = "/api/v1/namespaces/ns/resourcequotas"
POD = {"metadata": {"name": "tiny-dry-run"}, "spec": {}}
REFUSAL = (
    "exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1"  # and what came before
)


@pytest.fixture
def run(tmp_path):
    def run(test):
        async def main():
            async with (
                an_api_server() as server,
                await connect(server.kubeconfig(tmp_path)) as api,
            ):
                rules = NamespaceRules(api, ObjectCache(), "ns", Trigger())
                try:
                    await asyncio.wait_for(test(rules, server), 20)
                finally:
                    await rules.close()

        asyncio.run(main())

    return run


def quota(used):
    return {"status": {"hard": {"pods": "3"}, "used": {"pods": str(used)}}}


def test_a_label_that_admission_takes_off_is_known_before_a_pod_is_made(run):
    async def test(rules, server):
        pod = {**POD, "metadata": {**POD["metadata"], "labels": {"heddle.dev/job": "tiny"}}}
        server.admission = lambda _: POD
        said = await rules.template_problem(lambda: (pod,), 0.0)
        assert said.startswith("admission took the label heddle.dev/job off pod tiny-dry-run")
        server.admission = lambda body: body
        assert await rules.template_problem(lambda: (pod,), TRY_AGAIN_S[1]) == ""

    run(test)


def test_the_quotas_of_the_namespace_limit_the_job(run):
    async def test(rules, server):
        assert rules.headroom({}, 0.0) == Headroom()
        for namespace, used in (("other", 3), ("ns", 1)):
            path = f"/api/v1/namespaces/{namespace}/resourcequotas/team"
            rules._cache.put_quota(await server.put(path, quota(used)))
        assert rules.headroom({}, 0.0) == Headroom(None, 2, "quota team")

    run(test)


def test_a_refusal_has_them_read_at_once(run):
    async def test(rules, server):
        await server.put(f"{QUOTAS}/team", quota(1))
        await rules.learn("violates PodSecurity", 1.0)
        assert rules.headroom({}, 1.0) == Headroom()
        await rules.learn(REFUSAL, 1.0)
        assert rules.headroom({}, 1.0) == Headroom(None, 2, "quota team")

    run(test)


@pytest.mark.parametrize("status", [403, 503])
def test_where_they_cannot_be_read_the_refusal_is_believed_for_a_while(run, status):
    async def test(rules, server):
        server.refuses["GET /resourcequotas"] = (status, "forbidden")
        await rules.learn(REFUSAL, 1.0)
        assert rules.headroom({}, 1.0) == Headroom(None, 0, "quota team")
        assert rules.headroom({}, 1.0 + TAUGHT_S) == Headroom()

    run(test)


def test_a_template_is_tried_until_it_is_taken_and_nothing_is_stored(run):
    async def test(rules, server):
        server.refuses["POST /pods"] = (403, "violates PodSecurity")
        assert await rules.template_problem(lambda: [POD], 0.0) == "violates PodSecurity"
        server.refuses.clear()
        assert await rules.template_problem(lambda: [POD], 4.0) == "violates PodSecurity"
        assert await rules.template_problem(lambda: [POD], 6.0) == ""
        count = len(server.requests)
        assert await rules.template_problem(lambda: [POD], 500.0) == ""
        assert len(server.requests) == count
        assert server.of("pods") == {}

    run(test)


def test_a_policy_that_takes_pods_of_whole_nodes_alone_takes_the_template(run):
    async def test(rules, server):
        whole = {**POD, "metadata": {"name": "whole"}}
        refused = []

        def pods():
            server.refuses["POST /pods"] = (403, "a pod takes all GPUs of its node")
            yield POD
            refused.append(server.refuses.pop("POST /pods"))
            yield whole

        assert await rules.template_problem(pods, 0.0) == ""
        assert len(refused) == 1

    run(test)


@pytest.mark.parametrize("refusal", [(403, REFUSAL), (409, "exists")])
def test_a_quota_is_no_matter_of_the_template(run, refusal):
    async def test(rules, server):
        server.refuses["POST /pods"] = refusal
        assert await rules.template_problem(lambda: [POD], 0.0) == ""

    run(test)


def test_the_priority_is_asked_for_again_once_the_quota_may_let_the_pod_in(run):
    async def test(rules, server):
        resolved = {**POD, "spec": {"priority": 1000}}
        server.refuses["POST /pods"] = (403, REFUSAL)
        assert await rules.template_problem(lambda: [resolved], 0.0) == ""
        server.refuses.clear()
        assert await rules.template_problem(lambda: [resolved], TRY_AGAIN_S[1] + 1) == ""
        assert rules.priority == 1000

    run(test)


def test_a_server_that_fails_says_nothing_of_the_template(run):
    async def test(rules, server):
        server.refuses["POST /pods"] = (503, "etcd is away")
        assert await rules.template_problem(lambda: [POD], 0.0) == ""
        server.refuses["POST /pods"] = (422, "spec.containers: required")
        assert await rules.template_problem(lambda: [POD], 6.0) == "spec.containers: required"

    run(test)


def test_the_priority_is_what_admission_makes_of_the_template(run):
    async def test(rules, server):
        assert rules.priority == 0
        resolved = {**POD, "spec": {"priority": 1000}}  # as admission does with the class
        assert await rules.template_problem(lambda: [resolved], 0.0) == ""
        assert rules.priority == 1000

    run(test)


def test_nobody_who_does_not_wait_is_held_up_by_a_webhook_that_hangs(run, monkeypatch):
    async def test(rules, server):
        answered, asked = asyncio.Event(), []

        async def hang(request, path):
            asked.append(path)
            await answered.wait()
            return web.json_response({"message": "violates PodSecurity"}, status=403)

        monkeypatch.setattr(server, "_post", hang)
        for now in (0.0, 100.0):
            async with asyncio.timeout(1):
                assert await rules.template_problem(lambda: [POD], now, waits=False) == ""
        await server.until(lambda _: asked)
        answered.set()
        assert await rules._trigger.wait(5)
        assert await rules.template_problem(lambda: [POD], 1.0) == "violates PodSecurity"
        assert len(asked) == 1

    run(test)


def test_the_pause_counts_from_the_answer(run, monkeypatch):
    monkeypatch.setattr(namespace_rules, "TRY_AGAIN_S", (0.2, 0.2))

    async def test(rules, server):
        asked = []

        async def slow(request, path):
            asked.append(path)
            await asyncio.sleep(0.3)
            return web.json_response({"message": "away"}, status=503)

        monkeypatch.setattr(server, "_post", slow)
        assert await rules.template_problem(lambda: [POD], 0.0) == ""
        assert await rules.template_problem(lambda: [POD], 0.4) == ""
        assert len(asked) == 1
        await rules.template_problem(lambda: [POD], 100.0)
        assert len(asked) == 2

    run(test)
