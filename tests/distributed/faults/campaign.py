"""A job under the real decision loop, with real pods on this machine, and faults in its changes.

A node joins or is drained; all ranks pause at the part in question; processes are killed, stopped,
cut off from the network or slowed there; the ranks go on.  Whatever the outcome of that change, the
job must train on within a bound, and in the end the whole curve must be that of one plain process.
Who is only slow is waited for: no epoch begins because somebody was lost.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from heddle.local.cluster import LocalCluster
from heddle_operator.apis.heddlejob import load_job
from heddle_operator.controller.agents import Agents
from heddle_operator.controller.planner_client import PlannerClient
from heddle_operator.controller.planner_server import SearchSettings
from heddle_operator.controller.reconciler import Reconciler
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.decision import Decision
from heddle_operator.state.settings import Settings
from heddle_operator.state.snapshot import Observed
from planner.cluster.composition import Node
from planner.model.catalogue import find_model
from tests.distributed.faults.network import blackholed, own_network
from tests.distributed.faults.throttle import lacking_groups, slowed
from worker.contract import Report, StepRecord
from worker.engine.reference.training import training

LOG = logging.getLogger(__name__)
PARTS = ("prepare", "form", "build", "drain", "transfer", "verify", "vote", "flip")
TRIED = (*PARTS[:3], "try", *PARTS[4:])  # drain is the boundary of the first operations
KINDS = ("rank", "agent", "fork_server", "store", "pod")
# The network is a pod's: it is that of the store, or any other.
WAYS = {"kill": KINDS, "stop": KINDS, "blackhole": ("store", "pod"), "slow": KINDS}
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
SLOWER = 100.0  # times
SLOW_S = 8.0  # for so long, longer than the peer time-out
STEADY_S = 180.0  # a pod that was killed imports torch again, on a machine that others use too
PEER_TIMEOUT_S = 4
AGAIN_S = 30.0  # from a fault to the next trained step, while survivors hold the state
TOLERANCE = 1e-5
BATCH = 10


def lacking(way: str) -> str:
    """Why a way is not possible on this machine; "" if it is."""
    if way in SIGNALS:
        return ""
    if os.geteuid() != 0:
        return "only root may make networks and control groups"
    if way == "slow":
        return lacking_groups()
    tools = {"ip": "iproute2", "nft": "nftables"}
    missing = [package for tool, package in tools.items() if shutil.which(tool) is None]
    return f"tools are missing; apt-get install {' '.join(missing)}" if missing else ""


WIRES = {"pausing": "gloo", "staged": "staged", "connecting": "nccl over gloo"}  # of each entry
POSSIBLE = tuple(way for way in WAYS if not lacking(way))
AGENT = "tests.distributed.faults.network" if "blackhole" in POSSIBLE else "worker"


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
                "peerTimeoutSeconds": PEER_TIMEOUT_S,
                "minGainPercent": 0.1,
                "joinDebounceSeconds": 0,
                "cooldownSeconds": 0,
            },
        },
    }  # fmt: skip


class Run:
    """One job on local nodes, and what its agents have said."""

    def __init__(self, folder: Path, data: Path, entry: str = "pausing") -> None:
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.steps: dict[int, StepRecord] = {}
        self.trigger = Trigger()
        self.reasons: list[str] = []
        settings = Settings(
            plan_evaluations=400,
            report_wait_s=0.2,
            backoff_limit_s=0.5,
            changes_known=1000,  # changes follow each other here; every gain is to pay
        )
        token = folder / "token"
        token.write_text("secret")
        rank_entry = ("--rank-entry", f"tests.distributed.faults.rank_entries:{entry}")
        self.cluster = LocalCluster(
            "kills", f"kills-{os.getpid()}", folder, token, self.trigger, emulates=True,
            agent_command=(sys.executable, "-m", AGENT, "agent", *rank_entry),
            peer_timeout_s=PEER_TIMEOUT_S,
        )  # fmt: skip
        held = load_job(job(data))
        self.agents = Agents("secret", self.trigger, settings.report_wait_s, self._hear)
        search = SearchSettings(
            model="tiny-llama",
            global_batch=BATCH,
            sequence_length=128,
            seed=0,
            min_holders=2,
            budget_evaluations=settings.plan_evaluations,
        )
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
            assert decision.phase != "Failed", decision.message
            if claim(observed, decision):
                return observed
            await self.trigger.wait(0.05)
        ranks = {name: view.report and view.report.ranks for name, view in observed.agents.items()}
        raise AssertionError(
            f"not reached in {STEADY_S:g} s: {what}; {decision.phase}: {decision.message}; step "
            f"{max(self.steps, default=0)}; {ranks}; {[r.outcome for r in observed.epochs]}"
        )

    async def steady(self) -> Observed:
        """Training on the plan for just the nodes that are there, two steps further than now.

        A plan that has dropped replicas in an emergency is settled once the planner was asked.
        """
        start = max(self.steps, default=0)

        def claim(observed: Observed, decision: Decision) -> bool:
            live = observed.epochs[-1] if observed.epochs else None
            if live is None or live.outcome != "live" or decision.phase != "Running":
                return False
            if any(node.leaving_at_s is not None for node in observed.nodes):
                return False
            nodes = {node.name for node in observed.nodes}
            planned = {node.name for node in live.composition.nodes}
            is_planned = planned == nodes and (not live.is_emergency or decision.keeps_plan)
            return is_planned and max(self.steps, default=0) >= start + 2

        return await self.until(claim, "a steady job")


@asynccontextmanager
async def running(folder: Path, data: Path, entry: str = "pausing") -> AsyncIterator[Run]:
    """A job on the nodes a and b, with ranks of that entry."""
    run = Run(folder, data, entry)
    try:
        await run.planning.start()
        for name in ("a", "b"):
            run.cluster.join(Node(name=name, gpu_type="demo-fast", gpus=2), since_s=0.0)
        yield run
    finally:
        await run.cluster.close()
        await run.agents.close()
        await run.planning.close()


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to which process.

    Attributes:
        way: of WAYS.
        kind: of KINDS.
        turn: which pod, of those that have ranks; the store is the one that the change meets at.
    """

    way: str
    kind: str
    turn: int

    def __str__(self) -> str:
        return f"{self.way} {self.kind} {self.turn}"


Cases = Sequence[tuple[str, tuple[Fault, ...]]]  # (part of a change, faults in it)


def in_each_part(parts: Sequence[str], ways: Sequence[str], kinds: Sequence[str]) -> Cases:
    """One fault in each part of a change; every way and kind has its turn, as far as it can be."""
    found: list[tuple[str, tuple[Fault, ...]]] = []
    for turn, part in enumerate(parts):
        way = ways[turn % len(ways)]
        can = [kind for kind in WAYS[way] if kind in kinds]
        found.append((part, (Fault(way, can[turn % len(can)], turn),)))
    return found


def victims(observed: Observed, fault: Fault) -> tuple[str, tuple[int, ...]]:
    """The pod that a fault is about, and the pids of its processes."""
    views = [observed.agents[name] for name in sorted(observed.agents)]
    reports = [view.report for view in views if view.report is not None and view.report.ranks]
    record = observed.epochs[-1]
    store = record.seal.store if record.seal else ""
    of_store = next(report for report in reports if report.store == store)
    report = of_store if fault.kind == "store" else reports[fault.turn % len(reports)]
    ranks = [rank.pid for rank in report.ranks]
    everything = [report.agent_pid, report.fork_server_pid, report.store_pid, *ranks]
    found = {
        "rank": ranks[:1],
        "agent": [report.agent_pid],
        "fork_server": [report.fork_server_pid],
        "store": everything if fault.way == "blackhole" else [report.store_pid],
        "pod": everything,
    }[fault.kind]
    assert None not in found
    return report.pod, tuple(pid for pid in found if pid is not None)


async def fail_in(run: Run, part: str, *faults: Fault) -> float:
    """Change the nodes, pause all ranks at a part, let the faults happen, and go on.

    Returns:
        Seconds from the faults, or from the end of the slowness, to the end of the next step that
        began after them.
    """
    gate = run.gates / part
    for mark in run.gates.iterdir():  # of a rank that passed just as the last gate was opened
        mark.unlink()
    gate.touch()
    if "z" in run.cluster.nodes:
        run.cluster.drain("z")
    else:
        run.cluster.join(Node(name="z", gpu_type="demo-fast", gpus=2))
    observed = await run.until(lambda *_: any(run.gates.glob(f"{part}.*")), f"the part {part}")
    losses = _losses(observed)
    with ExitStack() as until_steady:
        for fault in faults:
            until_steady.enter_context(_happening(fault, *victims(observed, fault)))
        at_s = time.monotonic()
        gate.unlink()
        slow = [fault for fault in faults if fault.way == "slow"]
        if slow:
            observed = await run.until(lambda *_: time.monotonic() > at_s + SLOW_S, "its end")
            lost = set(_losses(observed)) - set(losses)
            assert len(slow) < len(faults) or not lost, f"a slow one is not lost: {lost}"
            at_s = time.monotonic()
            until_steady.close()
        await run.until(lambda *_: bool(_ends(run, at_s)), f"a step after {faults} in {part}")
    again_s = min(_ends(run, at_s)) - at_s
    LOG.info("%s in %s: a step again after %.1f s", ", ".join(map(str, faults)), part, again_s)
    assert again_s <= AGAIN_S, (part, faults, again_s)
    return again_s


def _ends(run: Run, at_s: float) -> list[float]:
    """When steps ended that have begun since."""
    return [step.end_s for step in run.steps.values() if step.start_s > at_s]


def _losses(observed: Observed) -> list[str]:
    """The epochs that began because somebody was lost, and what is known of why."""
    records = [record for record in observed.epochs if record.reason == "loss"]
    return [f"epoch {record.epoch} ({record.outcome}): {record.cause}" for record in records]


@contextmanager
def _happening(fault: Fault, pod: str, pids: tuple[int, ...]) -> Iterator[None]:
    """A fault happens; one that can end does at the end."""
    if fault.way == "slow":
        with slowed(pids, SLOWER):
            yield
    elif fault.way == "blackhole":
        with blackholed(pod, pids):
            yield
    else:
        for pid in pids:
            os.kill(pid, SIGNALS[fault.way])
        yield


async def campaign(
    folder: Path, data: Path, cases: Cases, entry: str
) -> tuple[dict[int, StepRecord], list[float]]:
    """Let the faults of all cases happen to one job, one case after the other."""
    async with running(folder, data, entry) as run:
        await run.steady()
        seconds = []
        for part, faults in cases:
            seconds.append(await fail_in(run, part, *faults))
            await run.steady()
        return run.steps, seconds


def check(
    folder: Path,
    data: Path,
    cases: Cases,
    entry: str = "pausing",
) -> list[float]:
    """No step is lost or trained twice, and the losses are those of one plain process.

    Args:
        folder: for the job.
        data: its corpus.
        cases: (part of a change, faults in it), one after the other.
        entry: of the ranks, which wait at that part, see `WIRES`; groups of `connecting` notice no
            dead peer and end with garbage, as NCCL's do.

    Returns:
        Of each case, seconds until the job trained again.
    """
    os.environ["HEDDLE_TEST_PAUSE"] = str(folder / "gates")
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[3])
    is_cut_off = any(fault.way == "blackhole" for _, faults in cases for fault in faults)
    with own_network() if is_cut_off else nullcontext():
        steps, seconds = asyncio.run(campaign(folder, data, cases, entry))
    assert sorted(steps) == list(range(len(steps))), "every step was trained and reported"
    assert {step.wire for step in steps.values()} == {WIRES[entry]}
    losses = [steps[index].loss for index in range(len(steps))]
    expected = _curve(data).first(len(steps))
    differences = [abs(a - b) for a, b in zip(losses, expected, strict=True)]
    assert max(differences) <= TOLERANCE
    return seconds


class _Curve:
    """Losses of one plain process, as far as they were asked for."""

    def __init__(self, data: Path) -> None:
        spec = load_job(job(data)).training
        self._training = training(spec, find_model(spec.model))
        self._losses: list[float] = []

    def first(self, count: int) -> list[float]:
        """Of the first so many steps."""
        while len(self._losses) < count:
            self._losses.append(next(self._training)[0])
        return self._losses[:count]


@functools.cache
def _curve(data: Path) -> _Curve:
    """One for all jobs on the same data: training it takes longer than the faults do."""
    return _Curve(data)
