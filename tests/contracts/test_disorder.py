"""Before a real API server: late, refused, lying or silent answers, and watches cut off."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest

from heddle_operator.kube.client import connect
from tests.builders import heddle_job
from tests.contracts.operator_process import an_operator, free_port
from tests.fakes.disorder import a_disorder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
JOBS = "/apis/heddle.dev/v1alpha1/namespaces/default/heddlejobs"
LEASE_S, FAULT_S = 12, 12
# Lists and watches of two collections: pods of jobs and of others, jobs of reflector and Kopf.
MOST = 10 * FAULT_S
ALL_JOBS = "/apis/heddle.dev/v1alpha1/heddlejobs"
LEADS = "heddle_operator_is_leader 1.0"


def a_job(name):
    """A job that waits for GPUs, of which there are none."""
    return heddle_job(name, training={"globalBatch": 32, "sequenceLength": 128})


async def followed(api, name):
    """Wait until the operator has written a status of the job."""
    for _ in range(900):
        if (await api.get(f"{JOBS}/{name}")).get("status", {}).get("phase") == "Pending":
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"job {name} is not followed")


async def leads(port):
    """Whether the operator does, as its metrics say."""
    with contextlib.suppress(aiohttp.ClientError):
        url = f"http://127.0.0.1:{port}/metrics"
        async with aiohttp.ClientSession() as client, client.get(url) as answer:
            return LEADS in await answer.text()
    return False


@pytest.mark.parametrize(
    ("fault", "keeps_lease"),
    [
        ({"late_s": LEASE_S / 6}, True),
        ({"watch_s": 1.0}, True),
        ({"watch_s": 0.0}, True),
        ({"gone": True}, True),
        ({"refusal": (429, {"Retry-After": "5"})}, False),
        ({"refusal": (503, {})}, False),
        ({"refusal": (401, {})}, False),
        ({"lie": "{}"}, False),
        ({"lie": "<html>"}, False),
        ({"is_silent": True}, False),
    ],
    ids=["late", "short", "cut", "gone", "429", "503", "401", "empty", "page", "silent"],
)
def test_an_operator_outlives_it_asks_seldom_and_goes_on(control_plane, fault, keeps_lease):
    async def main():
        async with (
            await connect(control_plane.kubeconfig) as api,
            a_disorder(control_plane.kubeconfig) as disorder,
        ):
            kubeconfig, port = disorder.kubeconfig(control_plane.folder), free_port()
            lease = ("--lease-seconds", str(LEASE_S))
            async with an_operator(kubeconfig, port, f"disorder-{port}", *lease) as process:
                made = [await api.create(JOBS, a_job(f"before-{port}"))]
                await followed(api, f"before-{port}")
                disorder.fail(**fault)
                disorder.requests.clear()
                made.append(await api.create(JOBS, a_job(f"amid-{port}")))
                led = []
                for _ in range(FAULT_S):
                    await asyncio.sleep(1.0)
                    led.append(await leads(port))
                asked = {
                    of: sum(n for (_, path), n in disorder.requests.items() if path == of)
                    for of in ("/api/v1/pods", ALL_JOBS)
                }
                print(f"{fault}: {asked} requests in {FAULT_S} s")
                disorder.fail()
                await followed(api, f"amid-{port}")
                assert process.returncode is None
                assert max(asked.values()) < MOST, asked
                assert not keeps_lease or all(led)
            for body in made:
                await api.delete(f"{JOBS}/{body['metadata']['name']}", body["metadata"]["uid"])

    asyncio.run(main())
