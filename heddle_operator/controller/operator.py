"""Wires an operator: leader election, probes, cache, controller, Kopf; and takes it apart again.

Invariant: nothing is decided without the lease.  When it is lost, all that is decided ends at once,
and the operator campaigns anew: what it knows of cluster, agents and plans stays warm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import kopf
from aiohttp import web

from heddle_operator.apis.errors import OperatorError
from heddle_operator.controller.arbiter import PriorityArbiter
from heddle_operator.controller.controller import Controller
from heddle_operator.controller.job_work import ControllerContext
from heddle_operator.controller.planner_pool import NICER, PlannerPool
from heddle_operator.controller.watches import Handlers
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import connect
from heddle_operator.kube.leader_election import LeaderElector, LeaseSettings
from heddle_operator.kube.malformed_objects import what_is_wrong
from heddle_operator.kube.reflections import job_reflectors, reflectors
from heddle_operator.kube.reflector import Reflector
from heddle_operator.ports.long_lived import LongLived
from heddle_operator.report.events import UNSEEN
from heddle_operator.resources.pods import WorkerDefaults
from heddle_operator.state.settings import Settings
from heddle_operator.telemetry.metrics import OperatorMetrics
from heddle_operator.telemetry.probes import health_application
from planner.errors import FIELD
from planner.pauses import doubled_s
from worker.http_limits import serving

LOG = logging.getLogger(__name__)
LEASE_CONNECTIONS = 2  # a renewal that was given up may still hold one
LOOK_S = 1.0  # between two looks at whether Kopf still watches
WATCH_AGAIN_S = (1.0, 30.0)  # first and longest pause after it did not


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """Options of the command line.

    Attributes:
        namespaces: to look at; none given: all.
        port: of probes and metrics.
        all_pods: pods of all namespaces are looked at all the same, for the GPUs that they hold.
    """

    namespaces: tuple[str, ...]
    port: int
    lease: LeaseSettings
    defaults: WorkerDefaults
    settings: Settings
    all_pods: bool = False

    @property
    def sees_all_pods(self) -> bool:
        """Whether no GPU is held unseen."""
        return self.all_pods or not self.namespaces


async def run_operator(options: OperatorOptions, metrics: OperatorMetrics) -> int:
    """Run until a signal comes; the exit status is 0."""
    with LongLived():
        return await _run(options, metrics)


async def _run(options: OperatorOptions, metrics: OperatorMetrics) -> int:
    async with (
        await connect() as api,
        await connect(connections=0) as watching,  # each watch takes a connection for good
        # No renewal waits behind the writes of the jobs.
        await connect(connections=LEASE_CONNECTIONS) as leasing,
        _background() as background,
    ):
        leasing.clock = api.clock  # what both hear tells of one server
        planners = PlannerPool(nicer=NICER)
        elector = LeaderElector(leasing, options.lease)
        cache = ObjectCache(
            lambda uid: controller.enqueue(uid),
            lambda namespace: controller.enqueue_namespace(namespace),
        )
        arbiter = PriorityArbiter(lambda job: controller.enqueue(job))
        controller = Controller(
            ControllerContext(
                api=api.fenced(elector.left_s),
                cache=cache,
                defaults=options.defaults,
                settings=options.settings,
                metrics=metrics,
                left_s=elector.left_s,
                pool=planners,
                arbiter=arbiter,
                sees_all_pods=options.sees_all_pods,
                identity=options.lease.identity,
            )
        )
        namespaces = options.namespaces
        if not options.sees_all_pods:
            LOG.warning("%s", UNSEEN)
        found = (
            *reflectors(watching, cache, namespaces, options.all_pods),
            *job_reflectors(watching, controller, namespaces),
        )
        for reflector in found:
            background(reflector.run())
        metrics.denied(lambda: sum(reflector.is_denied for reflector in found))

        def problem() -> str:
            now = time.monotonic()
            said = (*(each.problem(now) for each in found), controller.problem(now))
            return next(filter(None, (elector.problem, *said)), "")

        app = health_application(metrics, problem)
        registry = kopf.OperatorRegistry()
        handlers = Handlers(api, controller, found, bool(namespaces))
        handlers.register(registry)
        async with _serving_probes(app, options.port):
            try:
                campaign = _campaign(elector, controller, found, metrics)
                await _until_told(registry, options, campaign, controller.problem)
                await controller.close()  # nothing is decided once the Lease is released
                await elector.release()
            finally:
                await controller.close()
                await planners.close()
                await handlers.close()
        return 0


@contextlib.asynccontextmanager
async def _serving_probes(app: web.Application, port: int) -> AsyncIterator[None]:
    """Serve probes and metrics.

    Raises:
        OperatorError: the port is taken, or may not be listened on.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(serving(app, None, port))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OperatorError(
                f"the operator cannot listen on port {port}: {reason}; give a free one as {FIELD}",
                field="port",
                code="Taken",
            ) from None
        yield


@contextlib.asynccontextmanager
async def _background() -> AsyncIterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """Starts tasks, and ends them all at the end."""
    tasks: list[asyncio.Task[None]] = []
    try:
        yield lambda work: tasks.append(asyncio.create_task(work))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _campaign(
    elector: LeaderElector,
    controller: Controller,
    reflectors: Iterable[Reflector],
    metrics: OperatorMetrics,
) -> None:
    """Lead whenever this operator holds the Lease, until cancelled."""
    while True:
        await elector.acquire()
        for reflector in reflectors:  # what was not heard meanwhile is heard first
            reflector.retry()
        metrics.lead()
        controller.lead()
        await elector.renew()
        metrics.rest()
        await controller.rest()


async def _until_told(
    registry: kopf.OperatorRegistry,
    options: OperatorOptions,
    campaign: Coroutine[Any, Any, None],
    problem: Callable[[float], str],
) -> None:
    """Return when a signal has ended Kopf."""
    stop = asyncio.Event()
    leading = asyncio.create_task(campaign, name="lease")
    watching = asyncio.create_task(_watch(registry, options, stop, problem), name="watch")
    await asyncio.wait({leading, watching}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    await watching
    if leading.done():
        await leading  # a defect: it has no other end
    leading.cancel()
    await asyncio.wait({leading})


async def _watch(
    registry: kopf.OperatorRegistry,
    options: OperatorOptions,
    stop: asyncio.Event,
    problem: Callable[[float], str],
) -> None:
    """Let Kopf watch until a signal comes, and anew where it fails or falls silent.

    Both follow where somebody deletes the resource HeddleJob: a watch is refused before Kopf has
    heard of that, or the resource is back before the server's discovery names it again.  Kopf also
    fails at an error in a watch and at an answer that it cannot read.
    """
    failures = 0
    while not stop.is_set():
        ends, began_s = asyncio.Event(), time.monotonic()
        watching = asyncio.create_task(
            kopf.operator(
                registry=registry,
                standalone=True,
                clusterwide=not options.namespaces,
                namespaces=options.namespaces,
                stop_flag=ends,
            ),
            name="kopf",
        )
        while not watching.done():
            await asyncio.wait({watching}, timeout=LOOK_S)
            if not ends.is_set() and (stop.is_set() or problem(time.monotonic())):
                ends.set()
        error = watching.exception()
        if error is None and not ends.is_set():
            return  # a signal
        if stop.is_set():
            return
        failures = 1 if time.monotonic() - began_s > WATCH_AGAIN_S[1] else failures + 1
        pause_s = doubled_s(WATCH_AGAIN_S[0], failures, WATCH_AGAIN_S[1])
        why = "a change was missed" if error is None else what_is_wrong(error)
        LOG.warning("HeddleJobs are watched anew in %g s: %s", pause_s, why)
        for number in (signal.SIGINT, signal.SIGTERM):  # else Kopf's own
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await stop.wait()
