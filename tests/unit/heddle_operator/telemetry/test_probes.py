"""Probes and metrics answer over HTTP while the loop runs."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import ClientSession, web

from heddle_operator.telemetry.metrics import OperatorMetrics
from heddle_operator.telemetry.probes import health_application


def get(path, problem=""):
    async def main():
        metrics = OperatorMetrics()
        metrics.lead()
        runner = web.AppRunner(health_application(metrics, lambda: problem))
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
            async with ClientSession() as client, client.get(url) as answer:
                return answer.status, answer.content_type, await answer.text()
        finally:
            await runner.cleanup()

    return asyncio.run(main())


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_succeed_on_a_standby_too(path):
    assert get(path) == (200, "text/plain", "ok")


def test_an_operator_that_does_not_know_the_cluster_is_alive_and_not_ready():
    words = "/api/v1/nodes is not listed yet"
    assert get("/readyz", words) == (503, "text/plain", words)
    assert get("/healthz", words)[0] == 200


def test_metrics_are_what_prometheus_reads():
    status, kind, text = get("/metrics")
    assert (status, kind) == (200, "text/plain")
    assert "# TYPE heddle_operator_is_leader gauge\nheddle_operator_is_leader 1.0\n" in text
    assert text.endswith("\n")
