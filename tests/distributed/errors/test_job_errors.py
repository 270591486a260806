"""What becomes of a job, under the real decision loop and with real pods, when something goes
wrong that no killed process is."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from heddle.local.cluster import LocalCluster
from heddle_operator.apis.heddlejob import load_job
from heddle_operator.controller.agents import Agents
from heddle_operator.controller.planner_client import PlannerClient
from heddle_operator.controller.planner_server import SearchSettings
from heddle_operator.controller.reconciler import Reconciler
from heddle_operator.ports.trigger import Trigger
from heddle_operator.state.decision import Decision
from heddle_operator.state.settings import Settings
from heddle_operator.state.speeds.node_speed import SLOW, measured_speeds
from heddle_operator.state.speeds.work import work_of
from planner.cluster.composition import Node
from worker.agent.compute_times import STEPS
from worker.contract import Report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.system]
BATCH, SEQUENCE = 8, 128
LIMIT_S = 90.0  # on a machine that does much else
PLANS = 400  # of a search; enough that a fourth GPU is worth a change
NODES = (Node(name="a", gpu_type="demo-fast", gpus=3),)
KNOWN_S = 1.0  # to the operator, after a rank knows that a change has failed


class Run:
    """One job on one node of three GPUs, and what was decided for it."""

    def __init__(self, folder: Path, spec: dict[str, object]) -> None:
        self.decisions: list[Decision] = []
        self.epochs = self.step = 0
        self.trigger = Trigger()
        token = folder / "token"
        token.write_text("secret")
        self.cluster = LocalCluster(
            "errs", f"errs-{os.getpid()}", folder, token, self.trigger,
            agent_command=(
                sys.executable, "-m", "worker", "agent",
                "--rank-entry", "tests.distributed.errors.erring:main",
            ),
        )  # fmt: skip
        self.agents = Agents("secret", self.trigger, 0.2, self._hear)
        self.planning = PlannerClient(
            SearchSettings(
                model="tiny-llama",
                global_batch=BATCH,
                sequence_length=SEQUENCE,
                seed=0,
                min_holders=1,
                budget_evaluations=PLANS,
            ),
            self.trigger,
        )
        job = {
            "apiVersion": "heddle.dev/v1alpha1",
            "kind": "HeddleJob",
            "metadata": {"name": "errs"},
            "spec": {"model": {"name": "tiny-llama"}, **spec},
        }
        settings = Settings(plan_evaluations=PLANS, report_wait_s=0.2)
        self.loop = Reconciler(
            load_job(job), self.cluster, self.agents, self.planning, self.trigger, settings
        )

    def _hear(self, report: Report) -> None:
        self.step = max([self.step, *(record.step for record in report.steps)])

    async def until(self, claim: Callable[[Decision], bool]) -> Decision:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            decision = await self.loop.reconcile()
            self.epochs = len((await self.loop.observe()).epochs)
            if not self.decisions or self.decisions[-1] != decision:
                self.decisions.append(decision)
            if claim(decision):
                return decision
            await self.trigger.wait(0.05)
        raise AssertionError(f"step {self.step}; {[d.message for d in self.decisions]}")

    async def failed(self) -> Decision:
        return await self.until(lambda decision: decision.phase == "Failed")


@asynccontextmanager
async def running(
    folder: Path, data: Path, nodes: tuple[Node, ...] = NODES, **spec: object
) -> AsyncIterator[Run]:
    training = {"globalBatch": BATCH, "sequenceLength": SEQUENCE, "warmupSteps": 0}
    training |= spec.pop("training", {})  # type: ignore[arg-type, operator]
    content = {"data": {"path": str(data)}, "training": training, "steps": 100_000, **spec}
    run = Run(folder, content)
    try:
        await run.planning.start()
        for node in nodes:
            run.cluster.join(node, since_s=0.0)
        yield run
    finally:
        await run.cluster.close()
        await run.agents.close()
        await run.planning.close()


@pytest.fixture(autouse=True)
def errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that orders errors; see `tests.distributed.errors.erring`."""
    folder = tmp_path / "errors"
    folder.mkdir()
    monkeypatch.setenv("HEDDLE_TEST_ERRORS", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    return folder


def test_a_gpu_without_memory_is_left_out_and_the_job_trains_on(
    tmp_path: Path, corpus: Path, errors: Path
) -> None:
    (errors / "2").write_text("run_out_of_memory")

    async def main() -> None:
        async with running(tmp_path, corpus) as run:
            await run.until(lambda _: run.step > 10)
            observed = await run.loop.observe()
            used = {gpu for placed in observed.epochs[-1].plan.placement for gpu in placed.gpus}
            assert used == {0, 1}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("where", "what"),
    [("b.0.build", "out of memory: "), ("a.1.room", "out of memory: the change needs ")],
    ids=["of a joiner", "beside the old plan"],
)
def test_a_change_without_memory_is_over_within_a_second_and_not_tried_again(
    where: str, what: str, tmp_path: Path, corpus: Path, errors: Path
) -> None:
    order = errors / where
    order.write_text("run_out_of_memory")
    elastic = {"joinDebounceSeconds": 0, "cooldownSeconds": 0, "minGainPercent": 0.1}

    async def main() -> None:
        async with running(tmp_path, corpus, elastic=elastic) as run:
            await run.until(lambda _: run.step > 2)
            run.cluster.join(Node(name="b", gpu_type="demo-fast", gpus=1))
            decision = await run.until(lambda decision: "was aborted" in decision.message)
            assert f"cannot prepare epoch 2: {what}" in decision.message
            *_, record = (await run.loop.observe()).epochs
            assert (record.reason, record.outcome) == ("join", "aborted")
            assert record.closed_s is not None
            assert record.closed_s - float(order.read_text()) < KNOWN_S
            step = run.step
            await run.until(lambda _: run.step > step + 10)
            assert run.epochs == record.epoch

    asyncio.run(main())


def test_ranks_tell_how_slow_a_node_is(tmp_path: Path, corpus: Path, errors: Path) -> None:
    (errors / "b.0.slow").write_text("2")
    nodes = tuple(
        Node(name=name, gpu_type="demo-fast", gpus=1) for name in "abcd"
    )  # two replicas of two stages

    def is_told(speeds: Mapping[str, float]) -> bool:
        others = [speeds[name] for name in speeds if name != "b"]
        is_known = set(speeds) == set("abcd")
        return is_known and min(others) > SLOW and abs(speeds["b"] - 0.5) <= 0.05

    async def main() -> None:
        async with running(tmp_path, corpus, nodes) as run:
            found: list[Mapping[str, float]] = []
            await run.until(lambda _: run.step > 0)
            # Other work on the machine may hold a rank up for some of the steps that are counted.
            while not found or not is_told(found[-1]):
                assert len(found) < 10, found
                step = run.step
                await run.until(lambda _, step=step: run.step > step + STEPS)
                observed = await run.loop.observe()
                live = observed.epochs[-1]
                work = work_of(live.plan, run.loop.job.workload.model)
                found.append(measured_speeds(observed, live, work))

    asyncio.run(main())
