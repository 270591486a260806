"""Quotas are read seldom, learnt from refusals; a template is tried until it is taken once."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.kube.client import connect
from heddle_operator.kube.namespace_rules import NO_QUOTAS_S, QUOTAS_S, NamespaceRules
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
                await asyncio.wait_for(test(NamespaceRules(api, "ns"), server), 20)

        asyncio.run(main())

    return run


async def put_quota(server, used):
    status = {"hard": {"pods": "3"}, "used": {"pods": str(used)}}
    await server.put(f"{QUOTAS}/team", {"status": status})


def test_quotas_are_read_again_after_a_while(run):
    async def test(rules, server):
        assert await rules.headroom({}, 0.0) == Headroom()
        await put_quota(server, 1)
        assert await rules.headroom({}, NO_QUOTAS_S - 1) == Headroom()
        assert await rules.headroom({}, NO_QUOTAS_S) == Headroom(None, 2, "quota team")
        await put_quota(server, 3)
        assert (await rules.headroom({}, NO_QUOTAS_S + QUOTAS_S)).pods == 0

    run(test)


def test_a_refusal_has_them_read_at_once(run):
    async def test(rules, server):
        await rules.headroom({}, 0.0)
        await put_quota(server, 1)
        await rules.learn("violates PodSecurity", 1.0)
        assert await rules.headroom({}, 1.0) == Headroom()
        await rules.learn(REFUSAL, 1.0)
        assert await rules.headroom({}, 1.0) == Headroom(None, 2, "quota team")

    run(test)


def test_a_server_that_does_not_answer_changes_nothing_of_what_is_known(run):
    async def test(rules, server):
        await put_quota(server, 1)
        assert (await rules.headroom({}, 0.0)).pods == 2
        server.refuses["GET /resourcequotas"] = (503, "starting")
        assert (await rules.headroom({}, QUOTAS_S)).pods == 2

    run(test)


def test_where_they_may_not_be_read_the_refusal_is_believed_for_a_while(run):
    async def test(rules, server):
        server.refuses["GET /resourcequotas"] = (403, "forbidden")
        assert await rules.headroom({}, 0.0) == Headroom()
        await rules.learn(REFUSAL, 1.0)
        assert await rules.headroom({}, 1.0) == Headroom(None, 0, "quota team")
        assert await rules.headroom({}, 1.0 + NO_QUOTAS_S) == Headroom()

    run(test)


def test_a_template_is_tried_until_it_is_taken_and_nothing_is_stored(run):
    async def test(rules, server):
        server.refuses["POST /pods"] = (403, "violates PodSecurity")
        assert await rules.template_problem(lambda: POD, 0.0) == "violates PodSecurity"
        server.refuses.clear()
        assert await rules.template_problem(lambda: POD, 4.0) == "violates PodSecurity"
        assert await rules.template_problem(lambda: POD, 5.0) == ""
        count = len(server.requests)
        assert await rules.template_problem(lambda: POD, 500.0) == ""
        assert len(server.requests) == count
        assert server.of("pods") == {}

    run(test)


@pytest.mark.parametrize("refusal", [(403, REFUSAL), (409, "exists")])
def test_a_quota_is_no_matter_of_the_template(run, refusal):
    async def test(rules, server):
        server.refuses["POST /pods"] = refusal
        assert await rules.template_problem(lambda: POD, 0.0) == ""

    run(test)


def test_a_server_that_fails_says_nothing_of_the_template(run):
    async def test(rules, server):
        server.refuses["POST /pods"] = (503, "etcd is away")
        assert await rules.template_problem(lambda: POD, 0.0) == ""
        server.refuses["POST /pods"] = (422, "spec.containers: required")
        assert await rules.template_problem(lambda: POD, 5.0) == "spec.containers: required"

    run(test)


def test_the_priority_is_what_admission_makes_of_the_template(run):
    async def test(rules, server):
        assert rules.priority == 0
        resolved = {**POD, "spec": {"priority": 1000}}  # as admission does with the class
        assert await rules.template_problem(lambda: resolved, 0.0) == ""
        assert rules.priority == 1000

    run(test)
