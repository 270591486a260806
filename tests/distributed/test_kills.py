"""Every kind of process is killed in every part of a change: the job goes on, exactly.

One job under the real decision loop, with real pods on this machine.  A node joins or is drained;
all ranks stop at the part in question; a process is killed there; the ranks go on.  Whatever the
outcome of that change, the job must train on, and after four kills the whole curve must be that of
one plain process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import pytest

from heddle_operator.apis.heddlejob import load_job
from heddle_operator.controller.agents import Agents
from heddle_operator.controller.planner_client import PlannerClient
from heddle_operator.controller.planner_server import SearchSettings
from heddle_operator.controller.reconciler import Reconciler
from heddle_operator.local.cluster import LocalCluster
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.decision import Decision
from heddle_operator.state.settings import Settings
from heddle_operator.state.snapshot import Observed
from planner.cluster.composition import Node
from planner.model.catalogue import find_model
from worker.contract import Report, StepRecord
from worker.engine.reference import training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LOG = logging.getLogger(__name__)
PARTS = ("prepare", "drain", "transfer", "verify", "vote", "form", "build")
KINDS = ("rank", "agent", "fork_server", "store")
STEADY_S = 180.0  # a pod that was killed imports torch again, on a machine that others use too
TOLERANCE = 1e-5
BATCH = 10


def job(data: Path) -> dict[str, object]:
    return {
        "apiVersion": "heddle.dev/v1alpha1",
        "kind": "HeddleJob",
        "metadata": {"name": "kills"},
        "spec": {
            "model": {"name": "tiny-llama"},
            "data": {"path": str(data)},
            # A low rate: hundreds of steps stay comparable, and a lost or doubled step still shows.
            "training": {
                "globalBatch": BATCH, "sequenceLength": 128, "learningRate": 5e-5, "warmupSteps": 0,
            },
            "steps": 100_000,
            "elastic": {
                "minHolders": 2,
                "minGainPercent": 0.1,
                "joinDebounceSeconds": 0,
                "cooldownSeconds": 0,
            },
        },
    }  # fmt: skip


class Run:
    """One job on local nodes, and what its agents have said."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.steps: dict[int, StepRecord] = {}
        self.trigger = Trigger()
        self.last: Decision | None = None
        settings = Settings(
            plan_evaluations=400,
            report_wait_s=0.2,
            backoff_limit_s=0.5,
            unreachable_grace_s=0.5,
            changes_known=10**6,  # changes follow each other here; every gain is to pay
        )
        token = folder / "token"
        token.write_text("secret")
        entry = ("--rank-entry", "tests.distributed.faults:pausing")
        self.cluster = LocalCluster(
            "kills", f"kills-{os.getpid()}", folder, token, self.trigger, emulates=True,
            agent_command=(sys.executable, "-m", "worker", "agent", *entry),
        )  # fmt: skip
        held = load_job(job(data))
        self.agents = Agents("secret", self.trigger, settings.report_wait_s, self._hear)
        search = SearchSettings("tiny-llama", BATCH, 128, 0, 2, settings.plan_evaluations)
        self.planning = PlannerClient(search, self.trigger)
        self.loop = Reconciler(
            held, self.cluster, self.agents, self.planning, self.trigger, settings
        )

    def _hear(self, report: Report) -> None:
        self.steps.update({step.step: step for step in report.steps})

    async def until(self, claim: Callable[[Observed, Decision], bool], what: str) -> Observed:
        """Run the loop until a claim holds."""
        deadline = time.monotonic() + STEADY_S
        while time.monotonic() < deadline:
            decision = await self.loop.reconcile()
            observed = await self.loop.observe()
            assert decision.phase != "Failed", decision.reason
            if claim(observed, decision):
                return observed
            await self.trigger.wait(0.05)
        ranks = {name: view.report and view.report.ranks for name, view in observed.agents.items()}
        raise AssertionError(
            f"not reached in {STEADY_S:g} s: {what}; {decision.phase}: {decision.reason}; step "
            f"{max(self.steps, default=0)}; {ranks}; {[r.outcome for r in observed.epochs]}"
        )

    async def steady(self) -> Observed:
        """Training on the plan for just the nodes that are there, two steps further than now."""
        start = max(self.steps, default=0)

        def claim(observed: Observed, decision: Decision) -> bool:
            live = observed.epochs[-1] if observed.epochs else None
            settled = live is not None and live.outcome == "live" and decision.phase == "Running"
            nodes = {node.name for node in observed.nodes}
            planned = {node.name for node in live.composition.nodes} if live else set()
            return settled and planned == nodes and max(self.steps, default=0) >= start + 2

        return await self.until(claim, "a steady job")


@asynccontextmanager
async def running(folder: Path, data: Path) -> AsyncIterator[Run]:
    run = Run(folder, data)
    try:
        await run.planning.start()
        for name in ("a", "b"):
            run.cluster.join(Node(name, "demo-fast", 2), since_s=0.0)
        yield run
    finally:
        await run.cluster.close()
        await run.agents.close()
        await run.planning.close()


def victim(observed: Observed, kind: str, turn: int) -> int:
    """The pid of a process of this kind, on the pod whose turn it is.

    The store is the one that the change meets at.
    """
    views = [observed.agents[name] for name in sorted(observed.agents)]
    reports = [view.report for view in views if view.report is not None and view.report.ranks]
    record = observed.epochs[-1]
    if kind == "store":
        store = record.seal.store if record.seal else ""
        pid = next(report.store_pid for report in reports if report.store == store)
    else:
        report = reports[turn % len(reports)]
        pid = {
            "rank": report.ranks[0].pid,
            "agent": report.agent_pid,
            "fork_server": report.fork_server_pid,
        }[kind]
    assert pid is not None
    return pid


async def kill_in(run: Run, part: str, kind: str, turn: int) -> None:
    """Change the nodes, stop all ranks at a part, kill, and go on."""
    gate = run.gates / part
    for mark in run.gates.iterdir():  # of a rank that passed just as the last gate was opened
        mark.unlink()
    gate.touch()
    if "z" in run.cluster.nodes:
        run.cluster.drain("z")
    else:
        run.cluster.join(Node("z", "demo-fast", 2))
    observed = await run.until(lambda *_: any(run.gates.glob(f"{part}.*")), f"the part {part}")
    os.kill(victim(observed, kind, turn), signal.SIGKILL)
    gate.unlink()


async def campaign(folder: Path, data: Path, part: str) -> dict[int, StepRecord]:
    async with running(folder, data) as run:
        await run.steady()
        for turn, kind in enumerate(KINDS):
            LOG.info("killing a %s in %s, at step %d", kind, part, max(run.steps))
            await kill_in(run, part, kind, turn)
            await run.steady()
        return run.steps


@pytest.fixture(scope="module")
def expected(corpus: Path) -> Callable[[int], list[float]]:
    """Losses of the first steps in one plain process; one curve for all parts."""
    spec, losses = load_job(job(corpus)).training, list[float]()
    curve = training(spec, find_model(spec.model))

    def first(steps: int) -> list[float]:
        losses.extend(loss for loss, _ in islice(curve, max(0, steps - len(losses))))
        return losses[:steps]

    return first


@pytest.mark.parametrize("part", PARTS)
def test_the_job_survives_every_kind_of_kill_in_every_part_of_a_change(
    part: str,
    tmp_path: Path,
    corpus: Path,
    expected: Callable[[int], list[float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEDDLE_TEST_PAUSE", str(tmp_path / "gates"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    steps = asyncio.run(campaign(tmp_path, corpus, part))
    assert sorted(steps) == list(range(len(steps))), "every step was trained and reported"
    losses = [steps[index].loss for index in range(len(steps))]
    differences = [abs(a - b) for a, b in zip(losses, expected(len(steps)), strict=True)]
    assert max(differences) <= TOLERANCE
