"""Wires an operator: leader election, probes, cache, controller, Kopf; and takes it apart again.

Invariant: nothing is decided without the lease; when the lease is lost, the operator ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import kopf

from heddle_operator.controller.arbiter import PriorityArbiter
from heddle_operator.controller.controller import Controller
from heddle_operator.controller.job_controller import ControllerContext
from heddle_operator.controller.planner_pool import NICER, PlannerPool
from heddle_operator.controller.watches import Handlers
from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import connect
from heddle_operator.kube.leader_election import LeaderElector, LeaseSettings
from heddle_operator.kube.reflections import job_reflectors, reflectors
from heddle_operator.report.events import UNSEEN
from heddle_operator.resources.pods import WorkerDefaults
from heddle_operator.state.settings import Settings
from heddle_operator.telemetry.metrics import OperatorMetrics
from heddle_operator.telemetry.probes import health_application
from worker.http_limits import serving

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """What the command line says.

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
    """Run until a signal comes (0) or the lease is lost (1)."""
    async with (
        await connect() as api,
        await connect(connections=0) as watching,  # each watch takes a connection for good
        _background() as background,
    ):
        planners = PlannerPool(nicer=NICER)
        elector = LeaderElector(api, options.lease)
        cache = ObjectCache(
            lambda uid: controller.enqueue(uid),
            lambda namespace: controller.enqueue_namespace(namespace),
        )
        arbiter = PriorityArbiter(lambda job: controller.enqueue(job))
        controller = Controller(
            ControllerContext(
                api.fenced(elector.left_s),
                cache,
                options.defaults,
                options.settings,
                metrics,
                elector.left_s,
                planners,
                arbiter,
                options.sees_all_pods,
                options.lease.identity,
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

        def problem() -> str:
            now = time.monotonic()
            said = (*(each.problem(now) for each in found), controller.problem(now))
            return next(filter(None, said), "")

        app = health_application(metrics, problem)
        async with serving(app, None, options.port):
            try:
                if not await _acquire(elector):
                    return 0
                metrics.is_leader.set(1)
                registry = kopf.OperatorRegistry()
                Handlers(api, controller, found, bool(namespaces)).register(registry)
                return await _until_end(registry, options, elector)
            finally:
                await planners.close()


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


async def _acquire(elector: LeaderElector) -> bool:
    """Wait for the lease; False if a signal came first (process 1 of a pod has no default one)."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    acquiring = asyncio.create_task(elector.acquire(), name="acquire")
    stopping = asyncio.create_task(stop.wait(), name="signal")
    await asyncio.wait({acquiring, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not acquiring.done():
        acquiring.cancel()
        return False
    await acquiring
    return True


async def _until_end(
    registry: kopf.OperatorRegistry, options: OperatorOptions, elector: LeaderElector
) -> int:
    stop = asyncio.Event()
    keeping = asyncio.create_task(elector.renew(), name="lease")
    watching = asyncio.create_task(
        kopf.operator(
            registry=registry,
            standalone=True,
            clusterwide=not options.namespaces,
            namespaces=options.namespaces,
            stop_flag=stop,
        ),
        name="kopf",
    )
    await asyncio.wait({keeping, watching}, return_when=asyncio.FIRST_COMPLETED)
    is_lost = keeping.done()
    stop.set()
    if is_lost:
        watching.cancel()
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    if not is_lost:
        await elector.release()
    return int(is_lost)
