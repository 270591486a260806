"""The operator's own HTTP: probes and metrics.

`/healthz` does not answer when the loop stands still, which is how it fails.  `/readyz` succeeds
once the cluster is known, and fails when nothing was heard of it for too long, or of a change of a
job; on a standby it succeeds too, because a standby watches as well and is ready to take over.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from heddle_operator.telemetry.metrics import OperatorMetrics


def health_application(
    metrics: OperatorMetrics, problem: Callable[[], str] = lambda: ""
) -> web.Application:
    """The web application.

    Args:
        metrics: to show.
        problem: why the operator is not ready, in words; "" while it is.
    """

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_: web.Request) -> web.Response:
        why = problem()
        return web.Response(text=why or "ok", status=503 if why else 200)

    async def series(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), content_type="text/plain")

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", alive), web.get("/readyz", ready), web.get("/metrics", series)]
    )
    return app
