"""A training job of the paper's growing cluster on emulated devices, which follows given plans.

Processes, groups, state and its movement are real.  The model is a stand-in (`stand_in`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages import ROOT
from benchmarks.paper.measured.stand_in import (
    BATCH,
    SEQUENCE_LENGTH,
    SLOWDOWN,
    STAND_IN,
    rank_main,
)
from heddle.demo.job import text_folder
from heddle.local.run_folder import run_folder
from heddle.train.run import LocalRun, RunOptions
from heddle.train.script import Event
from heddle_operator.apis.errors import ProcessFailed
from heddle_operator.apis.heddlejob import HeddleJob, load_job
from heddle_operator.state.plan_reply import ReferencedPlan
from planner.cluster.composition import Composition
from planner.plans.plan import Plan
from planner.profiles.generator import find_profile

LIMIT_S = 600.0  # of the start, and of a size; other work may hold the cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of the cluster.

    Attributes:
        nodes: that are there.
        plan: for them.
        search_s: seconds that its search took; the job follows it so long after the join.
    """

    nodes: Composition
    plan: Plan
    search_s: float


class GrowingRun(LocalRun):
    """A run in which nodes join at fixed times, and each size has its plan.

    Args:
        sizes: of the cluster, ascending.
        hold_s: least wall seconds of each size; it lasts until two steps of its plan are trained.
        directory: for data, logs and the token.
    """

    def __init__(self, sizes: Sequence[Size], hold_s: float, directory: Path) -> None:
        job = _job(directory)
        profile = find_profile(job.workload)
        options = RunOptions(
            job=job,
            nodes=sizes[0].nodes,
            script=(),
            joiners=(),
            profile=profile,
            data_options=("--input", str(text_folder()), "--max-bytes", "200000"),
            rank_entry=f"{rank_main.__module__}:{rank_main.__name__}",
            plan=_referenced(sizes[0]),
            patience_s=LIMIT_S,
        )
        super().__init__(options, directory, lambda line: print(line, file=sys.stderr, flush=True))
        self._sizes, self._hold_s = sizes, hold_s
        self._stepped = asyncio.Event()
        self.on_steps = self._stepped.set
        self.joined_s: list[float] = []  # of each size, then its end, by the monotonic clock

    async def run(self) -> None:
        """Train through all sizes, then end every process."""
        training = asyncio.create_task(self.train())
        growing = asyncio.create_task(self._grow())
        try:
            await asyncio.wait({training, growing}, return_when=asyncio.FIRST_COMPLETED)
            if training.done():
                training.result()
                raise RuntimeError("the job ended before the cluster had grown")
            growing.result()
        finally:
            for task in (training, growing):
                task.cancel()
            await asyncio.gather(training, growing, return_exceptions=True)
            await self.close()
            self.end_orphans()

    async def _grow(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            await self._stepped.wait()
        for before, size in zip((None, *self._sizes), self._sizes, strict=False):
            self.joined_s.append(time.monotonic())
            if before is not None:
                known = {node.name for node in before.nodes.nodes}
                for node in size.nodes.nodes:
                    if node.name not in known:
                        self.apply_event(Event(0, "join", node.name, node))
                await asyncio.sleep(size.search_s * SLOWDOWN)
                self.cluster.follow(_referenced(size))
            await asyncio.sleep(max(0.0, self.joined_s[-1] + self._hold_s - time.monotonic()))
            async with asyncio.timeout(LIMIT_S):
                while not self._has_trained(size):
                    self._stepped.clear()
                    await self._stepped.wait()
        self.joined_s.append(time.monotonic())

    def _has_trained(self, size: Size) -> bool:
        """Whether two steps of the plan are trained."""
        newest = self.recorder.epochs[-1]
        return newest.plan == size.plan and len(self.recorder.steps_of(newest.epoch)) >= 2

    def found(self) -> dict[str, Any]:
        """Steps, changes, joins and the end as plain data, in wall seconds since the first step."""
        lived = [one.epoch for one in self.recorder.epochs if self.recorder.steps_of(one.epoch)]
        steps = [step for epoch in lived for step in self.recorder.steps_of(epoch)]
        begun_s = steps[0].start_s
        changes = []
        for epoch in lived[1:]:
            stall = self.recorder.stall(epoch)
            assert stall is not None
            switches = self.recorder.switches[epoch].values()
            record = next(one for one in self.recorder.epochs if one.epoch == epoch)
            changes.append(
                {
                    "reason": record.reason,  # a starved machine may lose ranks too
                    "at_s": self.recorder.steps_of(epoch)[0].start_s - begun_s,
                    "gpus": record.plan.gpus,
                    "stall_s": stall.stall_s,
                    "parts": dict(stall.parts),
                    "bytes_moved": sum(switch.bytes_received for switch in switches),
                }
            )
        return {
            "steps": [[step.start_s - begun_s, step.end_s - begun_s] for step in steps],
            "changes": changes,
            "joined_s": [max(0.0, at_s - begun_s) for at_s in self.joined_s],
            "overruns": self.recorder.overruns,
        }


def train(sizes: Sequence[Size], hold_s: float) -> dict[str, Any]:
    """Train the job on a cluster that grows; see `GrowingRun.found`.

    Where it ends before the last size, `ended` says why; whole sizes are kept.

    Raises:
        ProcessFailed: not even the first size was trained.
    """
    os.chdir(ROOT)  # rank processes import this module
    with run_folder("heddle-paper-") as folder:
        return asyncio.run(_trained(sizes, hold_s, folder))


async def _trained(sizes: Sequence[Size], hold_s: float, folder: Path) -> dict[str, Any]:
    run, ended = GrowingRun(sizes, hold_s, folder), ""
    try:
        await run.run()
    except (ProcessFailed, TimeoutError) as error:
        ended = str(error).partition(";")[0] or f"a size took longer than {LIMIT_S:g} s"
        if len(run.joined_s) < 2:
            raise ProcessFailed(
                f"the first size was not trained, as {ended}; try again on a quieter machine"
            ) from None
    return run.found() | {"ended": ended}


def _referenced(size: Size) -> ReferencedPlan:
    return ReferencedPlan(f"{size.nodes.gpus} GPUs", size.plan, kind="file")


def _job(folder: Path) -> HeddleJob:
    (folder / "config.json").write_text(json.dumps(STAND_IN), encoding="utf-8")
    return load_job(
        {
            "apiVersion": "heddle.dev/v1alpha1",
            "kind": "HeddleJob",
            "metadata": {"name": "growing"},
            "spec": {
                "model": {"path": str(folder), "init": "Seed"},
                "data": {"builtin": "text"},
                "training": {
                    "globalBatch": BATCH,
                    "sequenceLength": SEQUENCE_LENGTH,
                    "learningRate": 3e-4,
                },
                "steps": 100_000,
                "planRef": "given",
                "elastic": {
                    "mode": "Manual",
                    "joinDebounceSeconds": 0,
                    "cooldownSeconds": 0,
                    "peerTimeoutSeconds": 60,  # a starved rank is no lost one
                },
            },
        }
    )
