"""Runs in the machine of the control plane: emulates the cluster, drives the phases, writes them.

`python -m benchmarks.operator_scale.inside SIZES OUTPUT OPERATOR_PID` with KUBECONFIG; with
no pid it only creates nodes and pods of others.  OUTPUT gets one JSON object a phase.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.operator_scale import nodes
from benchmarks.operator_scale.agents import AgentServer
from benchmarks.operator_scale.kubelets import PodKubelets
from benchmarks.operator_scale.meters import Meters
from benchmarks.operator_scale.phases import Adoptions, Phases
from benchmarks.operator_scale.sizes import GPUS, Measured, Sizes
from heddle_operator.kube.client import KubeApi, connect

METRICS = "http://127.0.0.1:8080/metrics"


async def story(phases: Phases) -> AsyncIterator[Measured]:
    """Each phase, one after the other."""
    sizes = phases.sizes
    yield await phases.idle("at rest, no jobs")
    yield await phases.start_jobs()
    yield await phases.idle("at rest, jobs train")
    yield await phases.change_labels()
    yield await phases.change_pods()
    yield await phases.change_readiness()
    if sizes.moves:
        yield await phases.drain()
        yield await phases.lose()
    if sizes.large_nodes:
        yield await phases.start_large("large", sizes.large_nodes * GPUS)
        yield await phases.idle("at rest, a large job trains")
    if sizes.largest_gpus:
        yield await phases.start_large("largest", sizes.largest_gpus)


async def measure(api: KubeApi, sizes: Sizes, output: Path, pid: int) -> None:
    """Emulate pods and agents, and write what each phase takes."""
    server = AgentServer()
    await server.start()
    kubelets, adoptions = PodKubelets(api, server), Adoptions(api)
    meters = Meters(api, pid, METRICS, lambda: phases.writes + kubelets.writes)
    phases = Phases(api=api, sizes=sizes, meters=meters, kubelets=kubelets, adoptions=adoptions)
    working = [asyncio.create_task(kubelets.run()), asyncio.create_task(adoptions.run())]
    try:
        await meters.until_it_leads()
        with output.open("a", encoding="utf-8") as rows:
            async for found in story(phases):
                if meters.has_ended:
                    found.note += "; the operator has ended"
                print(json.dumps(asdict(found)), file=rows, flush=True)
                if meters.has_ended:
                    return
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await server.close()


async def main() -> None:
    """As the module says."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sizes, output, pid = Sizes.from_json(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    async with contextlib.AsyncExitStack() as held:
        api = await held.enter_async_context(await connect(connections=0))
        if pid:
            await measure(api, sizes, output, int(pid[0]))
        else:
            await nodes.create_all(api, sizes)


if __name__ == "__main__":
    asyncio.run(main())
