"""The contract's HTTP side: routes of the agent."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from worker.agent.admission import Refused
from worker.agent.agent import Agent
from worker.contract import Refusal
from worker.control.messages import Save, Suspend
from worker.http_limits import TRUSTED, trust

WAIT_MAX_S = 60.0
# Of the newest step: {field of its record: (metric, whose unit is spelled out, help)}.
# Source: Prometheus' conventions for names of metrics.
GAUGES = {
    "loss": ("loss", "Loss of the newest step"),
    "gradient_norm": ("gradient_norm", "Norm of the gradient, before clipping"),
    "learning_rate": ("learning_rate", "Learning rate of the update"),
    "loss_scale": ("loss_scale", "Loss scale of fp16"),
    "tokens_per_s": ("tokens_per_second", "Tokens of a second"),
    "mfu": ("mfu", "Share of the peak arithmetic of the plan's GPUs that the model used"),
    "forward_s": ("forward_seconds", "Forward passes, mean over the ranks"),
    "backward_s": ("backward_seconds", "Backward passes, mean over the ranks"),
    "waiting_s": ("waiting_seconds", "Waiting for neighbours, mean over the ranks"),
    "sync_s": ("sync_seconds", "Gradient sum and update"),
    "memory_bytes": ("memory_bytes", "Most bytes that a rank of the plan has held"),
}
BODY_MAX_BYTES = 64 << 20  # a directive lists every stage of thousands of GPUs
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Routes:
    """Handlers of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @web.middleware
    async def authorise(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/v1/"):
            given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            if not hmac.compare_digest(given, f"Bearer {self._agent.settings.token}".encode()):
                return _refusal(
                    401, "the bearer token is not this job's; it is in the job's Secret"
                )
            trust(request)
        return await handler(request)

    async def put_directive(self, request: web.Request) -> web.Response:
        body = await _body(request)
        return _accepted(body if isinstance(body, Refused) else await self._agent.accept(body))

    async def put_halt(self, request: web.Request) -> web.Response:
        body = await _body(request)
        return _accepted(body if isinstance(body, Refused) else self._agent.halt(body))

    async def put_end(self, _: web.Request) -> web.Response:
        self._agent.end()
        return _accepted(None)

    async def put_save(self, _: web.Request) -> web.Response:
        self._agent.tell(Save())
        return _accepted(None)

    async def put_suspend(self, _: web.Request) -> web.Response:
        self._agent.tell(Suspend())
        return _accepted(None)

    async def put_checkpoints(self, request: web.Request) -> web.Response:
        body = await _body(request)
        return _accepted(body if isinstance(body, Refused) else self._agent.look.begin(body))

    async def get_report(self, request: web.Request) -> web.Response:
        try:
            after = int(request.query.get("after", 0))
            wait_s = min(float(request.query.get("wait_s", 0)), WAIT_MAX_S)
            steps_from = int(request.query.get("steps_from", 0))
        except ValueError:
            return _refusal(
                400, "after and steps_from are whole numbers, wait_s is a number of seconds"
            )
        if wait_s > 0:
            await self._agent.wait_past(after, wait_s)
        return _json(200, self._agent.report(steps_from).model_dump_json())

    async def get_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=_metrics(self._agent), content_type="text/plain")

    async def get_healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")


def application(agent: Agent) -> web.Application:
    """The agent's web application."""
    routes = _Routes(agent)
    app = web.Application(middlewares=[routes.authorise], client_max_size=BODY_MAX_BYTES)
    app[TRUSTED] = set()
    app.add_routes(
        [
            web.put("/v1/directive", routes.put_directive),
            web.put("/v1/halt", routes.put_halt),
            web.put("/v1/end", routes.put_end),
            web.put("/v1/save", routes.put_save),
            web.put("/v1/suspend", routes.put_suspend),
            web.put("/v1/checkpoints", routes.put_checkpoints),
            web.get("/v1/report", routes.get_report),
            web.get("/metrics", routes.get_metrics),
            web.get("/healthz", routes.get_healthz),
        ]
    )
    return app


async def _body(request: web.Request) -> object:
    """JSON in a request, or `Refused`."""
    try:
        return json.loads(await request.read())  # bytes: JSON itself says its encoding
    except (ValueError, RecursionError) as error:
        return Refused(400, f"the body is not JSON: {error}")
    except web.RequestPayloadError:
        return Refused(400, "the body is not compressed as its Content-Encoding says")


def _accepted(refused: Refused | None) -> web.Response:
    if refused is not None:
        return _refusal(refused.status, refused.sentence)
    return web.json_response({"accepted": True})


def _json(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text, content_type="application/json")


def _refusal(status: int, sentence: str) -> web.Response:
    return _json(status, Refusal(error=sentence).model_dump_json())


def _metrics(agent: Agent) -> bytes:
    report = agent.report()
    registry = CollectorRegistry()
    labels = ["job", "pod"]
    values: dict[str, tuple[str, float]] = {
        "heddle_worker_epoch": ("Epoch of the newest directive", report.epoch or 0),
        "heddle_worker_ranks": ("Live rank processes", len(report.ranks)),
        "heddle_worker_step": (
            "Completed steps",
            max((rank.step for rank in report.ranks), default=0),
        ),
    }
    if report.steps:
        last = report.steps[-1]
        for field, (name, text) in GAUGES.items():
            value = getattr(last, field)
            if value is not None:
                values[f"heddle_worker_{name}"] = (text, value)
        values["heddle_worker_step_seconds"] = (
            "Duration of the newest step",
            last.end_s - last.start_s,
        )
    if report.evaluations:
        values["heddle_worker_held_out_loss"] = (
            "Loss of the newest evaluation on the held-out part",
            report.evaluations[-1].loss,
        )
    for name, (text, value) in values.items():
        Gauge(name, text, labels, registry=registry).labels(report.job, report.pod).set(value)
    return generate_latest(registry)
