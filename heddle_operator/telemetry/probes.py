"""The operator's own HTTP: probes and metrics.

`/healthz` does not answer when the loop stands still, which is how it fails; `/readyz` succeeds on
a standby too, because a standby is ready to take over.
"""

from __future__ import annotations

from aiohttp import web

from heddle_operator.telemetry.metrics import OperatorMetrics


def health_application(metrics: OperatorMetrics) -> web.Application:
    """The web application."""

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def series(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), content_type="text/plain")

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", alive), web.get("/readyz", alive), web.get("/metrics", series)]
    )
    return app
