"""The contract's HTTP side: routes of the agent."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from worker.agent import Agent
from worker.contract import Refusal

WAIT_MAX_S = 60.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(agent: Agent) -> web.Application:
    """The agent's web application."""

    @web.middleware
    async def authorise(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/v1/"):
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {agent.settings.token}".encode()):
                return _refusal(401, "the bearer token is not this job's; it is in the job's Secret")
        return await handler(request)

    async def put_directive(request: web.Request) -> web.Response:
        try:
            body = json.loads(await request.text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            return _refusal(400, f"the body is not JSON: {error}")
        refused = agent.accept(body)
        return _refusal(refused.status, refused.sentence) if refused else web.json_response({"accepted": True})

    async def get_report(request: web.Request) -> web.Response:
        try:
            after = int(request.query.get("after", 0))
            wait_s = min(float(request.query.get("wait_s", 0)), WAIT_MAX_S)
            steps_from = int(request.query.get("steps_from", 0))
        except ValueError:
            return _refusal(400, "after and steps_from are whole numbers, wait_s is a number of seconds")
        if wait_s > 0:
            await agent.wait_past(after, wait_s)
        return web.Response(text=agent.report(steps_from).model_dump_json(), content_type="application/json")

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=_metrics(agent), content_type="text/plain")

    async def get_healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(middlewares=[authorise], client_max_size=64 << 20)
    app.add_routes(
        [
            web.put("/v1/directive", put_directive),
            web.get("/v1/report", get_report),
            web.get("/metrics", get_metrics),
            web.get("/healthz", get_healthz),
        ]
    )
    return app


def _refusal(status: int, sentence: str) -> web.Response:
    return web.Response(
        status=status, text=Refusal(error=sentence).model_dump_json(), content_type="application/json"
    )


def _metrics(agent: Agent) -> bytes:
    report = agent.report()
    registry = CollectorRegistry()
    labels = ["job", "pod"]
    values = {
        "heddle_worker_epoch": ("Epoch of the newest directive", report.epoch or 0),
        "heddle_worker_ranks": ("Live rank processes", len(report.ranks)),
        "heddle_worker_step": ("Completed steps", max((rank.step for rank in report.ranks), default=0)),
    }
    if report.steps:
        last = report.steps[-1]
        values["heddle_worker_loss"] = ("Loss of the newest step", last.loss)
        values["heddle_worker_step_seconds"] = ("Duration of the newest step", last.end_s - last.start_s)
    for name, (text, value) in values.items():
        Gauge(name, text, labels, registry=registry).labels(report.job, report.pod).set(value)
    return generate_latest(registry)
