"""The resource HeddleJob is deleted with its jobs, and applied again: the operator goes on."""

from __future__ import annotations

import asyncio

import pytest

from heddle_operator.kube.client import ApiRefused, connect
from tests.builders import heddle_job
from tests.contracts.conftest import CRD
from tests.contracts.operator_process import an_operator, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]
JOBS = "/apis/heddle.dev/v1alpha1/namespaces/default/heddlejobs"
TURNS = 4  # who hears of the deletion first, and so what follows from it, is chance
RESOURCE = "crd/heddlejobs.heddle.dev"


def a_job(name):
    """A job that waits for GPUs, of which there are none."""
    return heddle_job(name, training={"globalBatch": 32, "sequenceLength": 128})


async def until_followed(api, name):
    """Wait until the operator has written a status of the job."""
    phase = None
    for _ in range(900):
        phase = (await api.get(f"{JOBS}/{name}")).get("status", {}).get("phase")
        if phase == "Pending":
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"job {name} is {phase or 'unseen'}")


async def until_gone(api):
    """Wait until the API server, which forgets a resource a moment later, knows it no more."""
    for _ in range(100):
        try:
            await api.get(JOBS)
        except ApiRefused as error:
            found = error.status
            break
        await asyncio.sleep(0.1)
    else:
        found = 200
    assert found == 404


def delete_resource(plane):
    plane.kubectl("delete", RESOURCE, "--timeout=60s")


def apply_resource(plane):
    plane.kubectl("apply", "-f", str(CRD))
    plane.kubectl("wait", "--for=condition=Established", RESOURCE)


def test_new_jobs_are_followed_each_time_the_resource_was_deleted_and_applied_again(control_plane):
    async def main():
        async with (
            await connect(control_plane.kubeconfig) as api,
            an_operator(control_plane.kubeconfig, free_port(), "resource") as process,
        ):
            for turn in range(TURNS):
                await api.create(JOBS, a_job(f"turn-{turn}"))
                await until_followed(api, f"turn-{turn}")
                try:
                    await asyncio.to_thread(delete_resource, control_plane)
                    await until_gone(api)
                    await asyncio.sleep(2.0)  # its watches are refused meanwhile
                finally:
                    await asyncio.to_thread(apply_resource, control_plane)
            made = await api.create(JOBS, a_job("last-turn"))
            try:
                await until_followed(api, "last-turn")
                assert process.returncode is None
            finally:
                await api.delete(f"{JOBS}/last-turn", uid=made["metadata"]["uid"])

    asyncio.run(main())
