"""Requests to an API server: what it refuses is one error with its own words."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from heddle_operator.apis.errors import OperatorError
from heddle_operator.kube import client
from heddle_operator.kube.client import ApiRefused, connect, is_in_cluster
from tests.fakes.api_server import an_api_server
from tests.refusals import refused

POD = "/api/v1/namespaces/default/pods/p"


def run(tmp_path, test):
    async def main():
        async with (
            an_api_server() as server,
            await connect(server.kubeconfig(tmp_path)) as api,
        ):
            return await asyncio.wait_for(test(server, api), 20)

    return asyncio.run(main())


@pytest.mark.parametrize("status", [400, 403, 409, 422, 500, 503])
def test_a_refusal_has_its_status_and_the_servers_own_words(tmp_path, status):
    async def test(server, api):
        server.refuses["POST pods"] = (status, "exceeded quota: gpus")
        with pytest.raises(ApiRefused, match=r"^exceeded quota: gpus$") as error:
            await api.create("/api/v1/namespaces/default/pods", {"metadata": {"name": "p"}})
        return error.value.status

    assert run(tmp_path, test) == status


def test_a_refusal_has_the_reason_and_the_object_of_the_servers_status(tmp_path):
    async def test(server, api):
        with pytest.raises(ApiRefused) as error:
            await api.get(POD)
        found = error.value
        return found.status, found.reason, found.resource, found.name

    assert run(tmp_path, test) == (404, "NotFound", "pods", POD.rsplit("/", 1)[1])


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"404 page not found\n", "404 page not found"), (b"", "HTTP 404"), (b"[1]", "[1]")],
)
def test_an_answer_that_is_no_status_is_quoted(data, message):
    found = ApiRefused.of(404, data, "HTTP 404")
    assert (str(found), found.reason, found.name, found.causes) == (message, "", "", frozenset())


@pytest.mark.parametrize(
    ("status", "message", "is_final"),
    [
        (403, "exceeded quota", True),
        (413, "limit is 3145728", True),
        (500, "etcdserver: request is too large", True),
        (500, "etcdserver: request timed out", False),
        (503, "no endpoints", False),
        (429, "too many requests", False),
    ],
)
def test_what_is_too_large_for_etcd_is_refused_for_good(status, message, is_final):
    found = ApiRefused.of(status, json.dumps({"message": message}).encode(), "")
    assert (found.is_final, found.passes) == (is_final, not is_final)


def test_a_server_that_does_not_answer_has_status_0_and_is_named(tmp_path):
    async def test(server, api):
        await server.stop()
        with pytest.raises(ApiRefused, match=f"127.0.0.1:{server.port} does not answer") as error:
            await api.get(POD)
        return error.value.status

    assert run(tmp_path, test) == 0


@pytest.mark.parametrize("lie", ["{}", "null", "[]", "<html>", ""])
def test_an_answer_that_is_no_object_is_a_refusal_that_passes(tmp_path, lie):
    async def test(server, api):
        server.lie = lie
        with pytest.raises(ApiRefused, match="gave an answer that cannot be read") as refused:
            await api.get(POD)
        assert refused.value.passes

    run(tmp_path, test)


@pytest.mark.parametrize("name", ["../../kube-system/secrets/x", "a?watch=true", "a#b", "%2e%2e"])
def test_a_path_that_leads_elsewhere_is_sent_nowhere(tmp_path, name):
    async def test(server, api):
        with pytest.raises(ApiRefused, match="is no path of an object") as error:
            await api.get(f"/api/v1/namespaces/default/configmaps/{name}")
        return error.value.status, server.requests

    assert run(tmp_path, test) == (400, [])


def test_logs_are_text_whatever_they_hold(tmp_path):
    async def test(server, api):
        server.logs["p", "worker"] = "{not json}\n\u00e9\n"
        return await api.text(f"{POD}/log", container="worker")

    assert run(tmp_path, test) == "{not json}\n\u00e9\n"


@pytest.mark.parametrize(("status", "is_fine"), [(404, True), (409, True), (403, False)])
def test_deleting_what_is_gone_or_another_is_fine_but_a_forbidden_deletion_is_not(
    tmp_path, status, is_fine
):
    async def test(server, api):
        server.refuses["DELETE p"] = (status, "no")
        try:
            await api.delete(POD, "u")
        except ApiRefused:
            return False
        return True

    assert run(tmp_path, test) is is_fine


@pytest.mark.parametrize(("given", "namespace"), [("", "default"), ("ml", "ml")])
def test_the_namespace_is_that_of_the_context(tmp_path, given, namespace):
    async def main():
        async with (
            an_api_server() as server,
            await connect(server.kubeconfig(tmp_path, given)) as api,
        ):
            return api.namespace, api.server == f"http://127.0.0.1:{server.port}"

    assert asyncio.run(main()) == (namespace, True)


A_KEY = "{client-certificate-data: AAAA, client-key-data: AAAA}"
WITH_A_KEY = (
    f"current-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n"
    f"clusters: [{{name: a, cluster: {{server: 'https://127.0.0.1:1'}}}}]\n"
    f"users: [{{name: a, user: {A_KEY}}}]\n"
)


@pytest.mark.parametrize(
    "content",
    [
        *(None, b"", b"{}", b"[]", b"5", b"a: [", b"\xff\xfe", b"current-context: none"),
        WITH_A_KEY.encode(),
    ],
)
def test_without_a_cluster_one_sentence_says_what_to_set(tmp_path, content):
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_bytes(content)
    with refused(OperatorError, "Missing") as found:
        asyncio.run(connect(path))
    said = str(found.value)
    assert "\n" not in said
    assert not re.search("codec|NoneType|object does not|Errno", said), said


def test_a_kubeconfig_that_is_not_there_is_named_and_nothing_is_logged(
    monkeypatch, tmp_path, caplog
):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for file in (None, tmp_path / "x"):
        with refused(OperatorError, "Missing"):
            asyncio.run(connect(file))
    assert caplog.text == ""


def test_a_kubeconfig_trumps_the_service_account(monkeypatch, tmp_path):
    token = tmp_path / "token"
    token.touch()
    monkeypatch.setattr(client, "_IN_CLUSTER", token)
    monkeypatch.setenv("KUBECONFIG", "somewhere")
    assert not is_in_cluster()


def test_a_kubeconfig_that_is_empty_is_none(monkeypatch, tmp_path):
    token = tmp_path / "token"
    token.touch()
    monkeypatch.setattr(client, "_IN_CLUSTER", token)
    monkeypatch.setenv("KUBECONFIG", "")
    assert is_in_cluster()


def test_a_kubeconfig_that_is_a_folder_is_one_sentence(tmp_path):
    with refused(OperatorError, "Missing"):
        asyncio.run(connect(tmp_path))
