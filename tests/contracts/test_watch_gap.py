"""An operator that could not watch for a while knows afterwards which jobs are gone."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

import aiohttp
import pytest

from heddle_operator.kube.client import connect
from tests.builders import heddle_job
from tests.contracts.operator_process import an_operator, free_port
from tests.fakes.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
JOBS = "/apis/heddle.dev/v1alpha1/namespaces/default/heddlejobs"


def a_job(name):
    """A job that waits for GPUs, of which there are none."""
    return heddle_job(name, training={"globalBatch": 32, "sequenceLength": 128})


async def until(port, path, is_so):
    """Ask the operator until its answer is so, as a kubelet or Prometheus would."""
    async with asyncio.timeout(90), aiohttp.ClientSession() as client:
        for _ in range(900):
            with contextlib.suppress(aiohttp.ClientError):
                async with client.get(f"http://127.0.0.1:{port}{path}") as answer:
                    text = await answer.text()
                    if is_so(answer.status, text):
                        return text
            await asyncio.sleep(0.1)
    raise AssertionError(f"{path} was never so")


def test_it_is_ready_once_it_knows_all_and_forgets_a_job_that_went_unseen(control_plane):
    async def main():
        async with await connect(control_plane.kubeconfig) as api:
            proxy, port = Proxy(urlsplit(api.server).port), free_port()
            await proxy.start()
            kubeconfig = proxy.kubeconfig(control_plane.kubeconfig, control_plane.folder)
            proxy.hang()
            made = [await api.create(JOBS, a_job(name)) for name in ("gone", "stays")]
            gone, stays = (body["metadata"]["uid"] for body in made)
            async with an_operator(kubeconfig, port, "gap"):
                said = await until(port, "/readyz", lambda status, _: status == 503)
                assert "is not listed yet" in said
                await until(port, "/healthz", lambda status, _: status == 200)
                proxy.go_on()
                await until(port, "/readyz", lambda status, _: status == 200)
                await until(
                    port, "/metrics", lambda _, text: 'job="gone"' in text and 'job="stays"' in text
                )
                await proxy.cut()
                await api.delete(f"{JOBS}/gone", uid=gone)
                await asyncio.to_thread(control_plane.stop_api_server)
                await asyncio.to_thread(control_plane.start_api_server)  # it knows no history
                await proxy.start()
                text = await until(port, "/metrics", lambda _, text: 'job="gone"' not in text)
                assert 'job="stays"' in text
            await proxy.cut()
            await api.delete(f"{JOBS}/stays", uid=stays)

    asyncio.run(main())
