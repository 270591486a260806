"""kube/references/config.py: the ConfigMap of the job's own namespace is read."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.apis.errors import InvalidJob
from heddle_operator.kube.client import ApiRefused, connect
from heddle_operator.kube.references.config import referenced_config
from tests.fakes.api_server import an_api_server
from tests.refusals import refused

BODY = {"metadata": {"name": "tiny", "namespace": "ns"}, "spec": {"model": {"configRef": "llama"}}}


def read(tmp_path, body, **maps):
    async def main():
        async with an_api_server() as server, await connect(server.kubeconfig(tmp_path)) as api:
            for name, data in maps.items():
                path = f"/api/v1/namespaces/ns/configmaps/{name}"
                await server.put(path, {"metadata": {"name": name}, "data": data})
            return await referenced_config(api, body)

    return asyncio.run(main())


def test_what_the_job_names_is_read(tmp_path):
    assert read(tmp_path, BODY, llama={"config.json": '{"a": 1}'}) == {"a": 1}


def test_a_job_that_names_none_asks_for_none(tmp_path):
    assert read(tmp_path, {"metadata": {}, "spec": {}}) is None


def test_code_is_not_run_in_the_operator(tmp_path):
    with refused(InvalidJob, "Missing", "spec.model.configRef"):
        read(tmp_path, {"metadata": {}, "spec": {"model": {"entryPoint": "mine:model"}}})


def test_one_that_is_not_there_is_refused_by_the_api(tmp_path):
    with pytest.raises(ApiRefused, match="llama"):
        read(tmp_path, BODY)
