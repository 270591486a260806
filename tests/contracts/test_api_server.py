"""What the operator relies on at an API server: one suite for the fake and the real one."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

import pytest

from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.kube.client import ApiRefused, connect
from heddle_operator.kube.owned_objects import JobObjects
from tests.builders import heddle_job
from tests.fakes.api_server import an_api_server

LABELS = {"heddle.dev/job": "tiny"}


@pytest.fixture(
    params=["fake", pytest.param("real", marks=[pytest.mark.slow, pytest.mark.cluster])]
)
def run(request, tmp_path):
    """Run a test with a connection and a folder of ConfigMaps of its own."""

    @contextlib.asynccontextmanager
    async def kubeconfig():
        if request.param == "real":
            yield request.getfixturevalue("control_plane").kubeconfig
        else:
            async with an_api_server() as server:
                yield server.kubeconfig(tmp_path)

    def run(test):
        async def main():
            async with kubeconfig() as path, await connect(path) as api:
                name = f"test-{secrets.token_hex(4)}"
                await api.create("/api/v1/namespaces", {"metadata": {"name": name}})
                await asyncio.wait_for(test(api, f"/api/v1/namespaces/{name}/configmaps"), 60)

        asyncio.run(main())

    return run


def a_map(name="one", **data):
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": LABELS},
        "data": data,
    }


async def refused(work):
    with pytest.raises(ApiRefused) as error:
        await work
    return error.value.status


def test_what_is_created_has_a_uid_and_a_version_and_exists_once(run):
    async def test(api, maps):
        made = await api.create(maps, a_map(key="1"))
        assert made["metadata"]["uid"]
        assert int(made["metadata"]["resourceVersion"]) > 0
        assert (await api.get(f"{maps}/one"))["data"] == {"key": "1"}
        assert await refused(api.create(maps, a_map())) == 409

    run(test)


def test_a_write_over_a_newer_version_is_refused(run):
    async def test(api, maps):
        made = await api.create(maps, a_map(key="1"))
        newer = await api.replace(f"{maps}/one", {**made, "data": {"key": "2"}})
        versions = [int(body["metadata"]["resourceVersion"]) for body in (made, newer)]
        assert versions[0] < versions[1]
        assert await refused(api.replace(f"{maps}/one", {**made, "data": {"key": "3"}})) == 409
        assert (await api.get(f"{maps}/one"))["data"] == {"key": "2"}

    run(test)


def test_a_merge_patch_adds_replaces_and_with_null_removes(run):
    async def test(api, maps):
        await api.create(maps, a_map(key="1", other="2"))
        patched = await api.patch(f"{maps}/one", {"data": {"key": None, "third": "3"}})
        assert patched["data"] == {"other": "2", "third": "3"}
        assert patched["metadata"]["labels"] == LABELS

    run(test)


def test_what_is_not_there_is_404_and_may_be_deleted(run):
    async def test(api, maps):
        assert await refused(api.get(f"{maps}/none")) == 404
        assert await refused(api.patch(f"{maps}/none", {"data": {}})) == 404
        assert await refused(api.replace(f"{maps}/none", a_map("none"))) == 404
        await api.delete(f"{maps}/none", "of-nobody")

    run(test)


def test_a_patch_names_the_object_that_was_seen(run):
    async def test(api, maps):
        made = await api.create(maps, a_map(key="1"))
        seen = {key: made["metadata"][key] for key in ("uid", "resourceVersion")}
        other = {**seen, "uid": "6e1f0a44-0000-4000-8000-000000000000"}
        status = await refused(api.patch(f"{maps}/one", {"metadata": other, "data": {"key": "2"}}))
        assert status in (409, 422)
        await api.patch(f"{maps}/one", {"metadata": seen, "data": {"key": "3"}})
        stale = {"metadata": seen, "data": {"key": "4"}}
        assert await refused(api.patch(f"{maps}/one", stale)) == 409
        assert (await api.get(f"{maps}/one"))["data"] == {"key": "3"}

    run(test)


def test_a_job_gets_no_status_of_an_earlier_one_of_its_name(run):
    async def test(api, maps):
        jobs = maps.replace("/api/v1", "/apis/heddle.dev/v1alpha1").replace(
            "configmaps", "heddlejobs"
        )
        made = await api.create(jobs, heddle_job("tiny"))
        metadata = {key: made["metadata"][key] for key in ("name", "namespace", "uid")}
        earlier = {**metadata, "uid": "6e1f0a44-0000-4000-8000-000000000000"}
        for named, phase in ((metadata, "Pending"), (earlier, "Failed")):
            job = HeddleJob.model_validate({**made, "metadata": named})
            await JobObjects(job, api).write_status({"phase": phase})
        assert (await api.get(f"{jobs}/tiny"))["status"]["phase"] == "Pending"

    run(test)


def test_what_is_created_replaced_and_patched_has_the_operator_as_its_field_manager(run):
    async def test(api, maps):
        jobs = maps.replace("/api/v1", "/apis/heddle.dev/v1alpha1").replace(
            "configmaps", "heddlejobs"
        )
        made = await api.create(maps, a_map(key="1"))
        replaced = await api.replace(f"{maps}/one", {**made, "data": {"key": "2"}})
        patched = await api.patch(f"{maps}/one", {"data": {"key": "3"}})
        job = HeddleJob.model_validate(await api.create(jobs, heddle_job("tiny")))
        await JobObjects(job, api).write_status({"phase": "Pending"})
        for body in (made, replaced, patched, await api.get(f"{jobs}/tiny")):
            rows = body["metadata"]["managedFields"]
            assert {row["manager"] for row in rows} == {"heddle-operator"}

    run(test)


def test_only_the_object_of_that_uid_is_deleted(run):
    async def test(api, maps):
        made = await api.create(maps, a_map())
        await api.delete(f"{maps}/one", uid="somebody-else")
        assert (await api.get(f"{maps}/one"))["metadata"]["uid"] == made["metadata"]["uid"]
        await api.delete(f"{maps}/one", uid=made["metadata"]["uid"])
        assert await refused(api.get(f"{maps}/one")) == 404

    run(test)


def test_lists_select_by_label_and_come_in_pages(run):
    async def test(api, maps):
        for name in ("a", "b", "c"):
            await api.create(maps, a_map(name))
        await api.create(maps, {**a_map("other"), "metadata": {"name": "other"}})
        first = await api.get(maps, labelSelector="heddle.dev/job", limit="2")
        rest = await api.get(
            maps,
            labelSelector="heddle.dev/job",
            limit="2",
            **{"continue": first["metadata"]["continue"]},
        )
        names = [body["metadata"]["name"] for body in (*first["items"], *rest["items"])]
        assert names == ["a", "b", "c"]
        assert not rest["metadata"].get("continue")
        assert (await api.get(maps, labelSelector="heddle.dev/job=none"))["items"] == []

    run(test)


def test_a_secret_is_given_as_text_and_held_as_base64(run):
    async def test(api, maps):
        path = maps.replace("configmaps", "secrets")
        body = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}}
        made = await api.create(path, {**body, "stringData": {"token": "abc"}})
        assert made["data"] == {"token": "YWJj"}

    run(test)


def test_in_a_namespace_that_is_being_deleted_nothing_is_created_and_the_cause_is_said(run):
    async def test(api, maps):
        ended = []
        told = api.telling(lambda: ended.append(maps))
        await told.create(maps, a_map("one", key="1"))
        path = maps.removesuffix("/configmaps")
        assert not ended
        await told.delete(path, (await api.get(path))["metadata"]["uid"])
        with pytest.raises(ApiRefused) as error:
            await told.create(maps, a_map("two", key="1"))
        assert (error.value.status, error.value.causes) == (403, {"NamespaceTerminating"})
        assert ended == [maps]
        assert await refused(told.create(maps, a_map("one", key="1"))) in (403, 409)

    run(test)
