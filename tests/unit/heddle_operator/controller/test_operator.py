"""The operator as a process, against an API server in memory: it leads, follows jobs and ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from importlib.metadata import version

import aiohttp
import pytest

from tests.fakes.api_server import an_api_server

pytestmark = [pytest.mark.slow, pytest.mark.system]
LEASE = "/apis/coordination.k8s.io/v1/namespaces/ops/leases/heddle-operator"
JOB = "/apis/heddle.dev/v1alpha1/namespaces/ns/heddlejobs/tiny"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Operators:
    """Operators of one API server."""

    def __init__(self, server, kubeconfig):
        self.server = server
        own = {"KUBECONFIG": str(kubeconfig), "HEDDLE_COMMIT": "c0ffee"}
        self.environment = {**os.environ, **own}
        self.processes = []

    async def start(self, *options):
        port = free_port()
        command = (
            *("-m", "heddle_operator", "run", "--port", str(port)),
            *("--lease-namespace", "ops", "--lease-seconds", "4", *options),
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            env=self.environment,
            stderr=asyncio.subprocess.PIPE,
        )
        self.processes.append(process)
        return process, f"http://127.0.0.1:{port}"

    def holder(self):
        return self.server.objects.get(LEASE, {}).get("spec", {}).get("holderIdentity", "")

    async def until_led_by(self, process):
        await self.server.until(lambda _: self.holder().endswith(f"_{process.pid}"))


def run(tmp_path, test):
    async def main():
        async with an_api_server() as server:
            operators = Operators(server, server.kubeconfig(tmp_path))
            try:
                await asyncio.wait_for(test(server, operators), 50)
            finally:
                for process in operators.processes:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()

    asyncio.run(main())


async def put_invalid_job(server):
    """One that the operator can answer without a cluster: its refusal is in the status."""
    kind = {"apiVersion": "heddle.dev/v1alpha1", "kind": "HeddleJob"}
    await server.put(JOB, {**kind, "spec": {"model": {"name": "unknown"}}})


def phase(server):
    return server.objects[JOB].get("status", {}).get("phase")


async def fetch(url):
    async with aiohttp.ClientSession() as client, client.get(url) as answer:
        return answer.status, await answer.text()


def test_it_leads_follows_jobs_answers_probes_and_ends_when_told(tmp_path):
    async def test(server, operators):
        await put_invalid_job(server)
        process, url = await operators.start()
        await server.until(lambda s: phase(s) == "Invalid")
        assert await fetch(f"{url}/healthz") == (200, "ok")
        assert await fetch(f"{url}/readyz") == (200, "ok")
        status, series = await fetch(f"{url}/metrics")
        assert (status, "heddle_operator_is_leader 1.0" in series) == (200, True)
        assert f'heddle_build_info{{commit="c0ffee",version="{version("heddle")}"}} 1.0' in series
        turns = re.search(r"^heddle_loop_blocked_seconds_count (.*)$", series, re.MULTILINE)
        assert float(turns[1]) > 1
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
        assert operators.holder() == ""
        metadata = server.objects[JOB]["metadata"]
        assert "finalizers" not in metadata
        assert "annotations" not in metadata

    run(tmp_path, test)


def test_a_namespace_that_may_not_be_read_holds_up_its_own_jobs_alone(tmp_path):
    async def test(server, operators):
        of_gone = JOB.replace("/ns/", "/gone/")
        await put_invalid_job(server)
        await server.put(of_gone, {**server.objects[JOB], "metadata": {}})
        refused = [f"GET /namespaces/gone/{plural}" for plural in ("pods", "configmaps")]
        for path in refused:  # as where its Role is gone
            server.refuses[path] = (403, "it is forbidden in the namespace gone")
        _, url = await operators.start("--namespace", "ns", "--namespace", "gone")
        await server.until(lambda s: phase(s) == "Invalid")
        assert await fetch(f"{url}/readyz") == (200, "ok")
        assert "heddle_denied_collections 3.0" in (await fetch(f"{url}/metrics"))[1]
        assert "status" not in server.objects[of_gone]
        for path in refused:
            del server.refuses[path]
        await server.until(lambda s: "status" in s.objects[of_gone])
        await until_it_says(f"{url}/metrics", 200, "heddle_denied_collections 0.0")

    run(tmp_path, test)


@pytest.mark.parametrize("ends", [False, True])
def test_an_error_in_a_watch_is_outlived_and_a_signal_ends_the_pause_after_it(tmp_path, ends):
    async def test(server, operators):
        server.watch_error = 500
        process, url = await operators.start()
        path = JOB.replace("/namespaces/ns", "").removesuffix("/tiny")
        await server.until(lambda s: s.requests.count(("GET", path)) > 12)
        await until_it_says(f"{url}/healthz", 200, "ok")
        if ends:
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 20) == 0
            return
        server.watch_error = 0
        await put_invalid_job(server)
        await server.until(lambda s: phase(s) == "Invalid")
        assert process.returncode is None

    run(tmp_path, test)


def test_a_standby_takes_over_from_an_operator_that_was_killed(tmp_path):
    async def test(server, operators):
        first, _ = await operators.start()
        await operators.until_led_by(first)
        second, _ = await operators.start()
        await server.until(lambda s: s.requests.count(("GET", LEASE)) > 8)
        first.kill()
        await operators.until_led_by(second)
        await put_invalid_job(server)
        await server.until(lambda s: phase(s) == "Invalid")

    run(tmp_path, test)


async def until_it_says(url, status, words):
    """Ask again until the operator answers so: of what it is, only its own HTTP tells."""
    for _ in range(600):
        answer = await fetch(url)
        if answer[0] == status and words in answer[1]:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{url} says {answer}")


async def until_it_leads(url, is_so):
    await until_it_says(f"{url}/metrics", 200, f"heddle_operator_is_leader {float(is_so)}")


def writes(server):
    """What was written beside the Lease."""
    return [what for what in server.requests if what[0] != "GET" and "/leases" not in what[1]]


def test_an_operator_whose_lease_was_taken_stands_by_and_leads_again(tmp_path):
    async def test(server, operators):
        process, url = await operators.start()
        await operators.until_led_by(process)
        body = server.objects[LEASE]
        taken = {**body["spec"], "holderIdentity": "another", "leaseDurationSeconds": 60}
        await server.put(LEASE, {**body, "spec": taken})
        await until_it_leads(url, False)
        await put_invalid_job(server)
        asked = server.requests.count(("GET", LEASE))
        await server.until(lambda s: s.requests.count(("GET", LEASE)) > asked + 2)
        assert await fetch(f"{url}/readyz") == (200, "ok")
        assert writes(server) == []
        ended = {**server.objects[LEASE]["spec"], "holderIdentity": ""}
        await server.put(LEASE, {**server.objects[LEASE], "spec": ended})
        await server.until(lambda s: phase(s) == "Invalid")
        assert "heddle_operator_is_leader 1.0" in (await fetch(f"{url}/metrics"))[1]
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0

    run(tmp_path, test)


def test_an_operator_outlives_an_api_server_that_is_gone_for_longer_than_its_lease(tmp_path):
    async def test(server, operators):
        process, url = await operators.start()
        await operators.until_led_by(process)
        await server.stop()
        await until_it_leads(url, False)
        await until_it_says(f"{url}/readyz", 503, "the Lease heddle-operator cannot be had")
        assert (await fetch(f"{url}/healthz"))[0] == 200
        await server.start()
        await until_it_leads(url, True)
        await put_invalid_job(server)
        await server.until(lambda s: phase(s) == "Invalid")
        assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0

    run(tmp_path, test)


def test_a_waiting_operator_ends_at_once_when_told(tmp_path):
    async def test(server, operators):
        spec = {"holderIdentity": "another", "leaseDurationSeconds": 600}
        await server.put(LEASE, {"spec": spec})
        process, _ = await operators.start()
        await server.until(lambda s: ("GET", LEASE) in s.requests)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
        assert operators.holder() == "another"

    run(tmp_path, test)


def test_a_port_that_is_taken_is_said_in_a_sentence(tmp_path):
    async def test(server, operators):
        with socket.socket() as listener:
            listener.bind(("", 0))
            listener.listen()
            port = listener.getsockname()[1]
            process, _ = await operators.start("--port", str(port))
            assert await asyncio.wait_for(process.wait(), 40) == 2
        said = (await process.stderr.read()).decode()
        assert said == (
            f"Error: the operator cannot listen on port {port}: Address already in use; "
            "give a free one as --port\n"
        )

    run(tmp_path, test)


def test_the_lease_is_renewed_beside_requests_that_hang(tmp_path, monkeypatch):
    async def test(server, operators):
        async def hang(request, path):
            await asyncio.sleep(60)

        monkeypatch.setattr(server, "_patch", hang)  # what writes a status
        await put_invalid_job(server)
        for number in range(60):
            of_another = JOB.replace("/tiny", f"/tiny-{number}")
            await server.put(of_another, {**server.objects[JOB], "metadata": {}})
        process, _ = await operators.start()
        await operators.until_led_by(process)
        await server.until(lambda s: sum(what[0] == "PATCH" for what in s.requests) > 31)
        renewed = server.requests.count(("PUT", LEASE))
        await server.until(lambda s: s.requests.count(("PUT", LEASE)) > renewed + 4)
        process.kill()
        assert b"could not be renewed in time" not in await process.stderr.read()

    run(tmp_path, test)
