"""A node, a rank or a store is killed without notice: survivors roll forward, and the curve goes on
as if nothing happened."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from heddle_operator.report.timings import reconfigurations
from heddle_operator.state.snapshot import AgentView, Observed
from planner.model.catalogue import find_model
from planner.plans.plan import Plan
from tests.distributed.pods import Pods, place, template
from tests.fakes.operator import a_record
from tests.families import MIXTURES
from worker.contract import Halt, Resume, TrainingSpec, resume_of
from worker.training_settings import LossScale

pytestmark = [pytest.mark.slow, pytest.mark.system]
TWO = place(
    (template("2x6", 2, 2), template("1x3+1x3", 1, 4)), [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
)
LEFT = place((template("1x2+1x4", 2, 4),), [("a", 0), ("a", 1)])
TOLERANCE = 1e-5
SILENCE_S = 3.0  # until the operator takes the node for lost
STEP_S = 1.0  # that may still end after the node has fallen silent
OTHER_RANK_S = 0.1  # a pod keeps the steps of one of its two ranks, the slower one has the stall
HALT_S = 5.0  # half of the 10 s time-out: a closed connection tells, not silence


def gpus(plan: Plan) -> list[tuple[str, int]]:
    return [(placed.node, gpu) for placed in plan.placement for gpu in placed.gpus]


@pytest.fixture(params=["tiny-llama"])
def spec(request: pytest.FixtureRequest, corpus: Path) -> TrainingSpec:
    known = {"tiny-llama": find_model("tiny-llama"), "deepseek-v3": MIXTURES["deepseek-v3"]}
    shape = replace(known[request.param], layers=6)
    return TrainingSpec(
        model=shape.name,
        shape=shape.to_json(),
        data=str(corpus),
        global_batch=8,
        sequence_length=32,
        steps=30,
        learning_rate=3e-4,
        warmup_steps=0,
        router_bias_rate=0.05,
    )


@pytest.fixture
def pods(tmp_path: Path, spec: TrainingSpec) -> Iterator[Pods]:
    """Agents a and b, training the plan TWO from epoch 1 on."""
    found = Pods(tmp_path)
    try:
        found.start("a", "b", gpus=2)
        found.change(found.directive(1, TWO, spec, "b", reason="start"))
        found.pods["a"].wait(lambda report: any(rank.step >= 5 for rank in report.ranks))
        yield found
    finally:
        found.close()


def survivors_halt(
    pods: Pods, nodes: tuple[str, ...], killed_s: float, gone: set[tuple[str, int]]
) -> Resume:
    ranks = []
    for node in nodes:
        slots = {gpu for name, gpu in gpus(TWO) if name == node and (name, gpu) not in gone}
        report = pods.pods[node].wait(
            lambda report, slots=slots: (
                slots <= {rank.slot for rank in report.ranks if rank.phase == "halted"}
            )
        )
        ranks += [rank for rank in report.ranks if rank.phase == "halted"]
    assert time.monotonic() - killed_s < HALT_S
    resume = resume_of(ranks)
    assert resume is not None
    return resume


def curve_is_exact(pods: Pods, spec: TrainingSpec) -> None:
    from worker.engine.reference.training import train

    expected, _ = train(spec, spec.model_shape(), spec.steps)
    found = {step.step: step.loss for pod in pods.pods.values() for step in pod.report().steps}
    assert sorted(found) == list(range(spec.steps))
    assert max(abs(found[step] - loss) for step, loss in enumerate(expected)) <= TOLERANCE


@pytest.mark.parametrize("spec", ["tiny-llama", "deepseek-v3"], indirect=True)
def test_survivors_of_a_killed_node_that_hosts_the_store_roll_forward(
    pods: Pods, spec: TrainingSpec
) -> None:
    killed_s = time.monotonic()
    pods.kill("b")
    resume = survivors_halt(pods, ("a",), killed_s, set())
    holds = {gpu: 1 for gpu in gpus(TWO) if gpu[0] == "a"}
    directive = pods.directive(
        2, LEFT, spec, "a", reason="loss", holds=holds, layouts={1: TWO}, resume=resume
    )
    pods.change(directive)
    pods.pods["a"].wait(lambda report: all(rank.phase == "done" for rank in report.ranks))
    curve_is_exact(pods, spec)


def test_the_stall_of_a_loss_is_the_gap_between_the_survivors_own_steps(
    pods: Pods, spec: TrainingSpec
) -> None:
    """The node falls silent: nobody's connection closes, and the operator tells the survivors."""
    os.killpg(pods.pods["b"].process.pid, signal.SIGSTOP)
    silent_s = time.monotonic()
    survivor = pods.pods["a"]
    survivor.wait(lambda report: time.monotonic() - silent_s > SILENCE_S)
    halt = Halt(epoch=1, reason="pod tiny-b-0 fell silent")
    assert survivor.request("PUT", "/v1/halt", halt.model_dump_json().encode())[0] == 200
    resume = survivors_halt(pods, ("a",), time.monotonic(), set())
    pods.kill("b")
    holds = {gpu: 1 for gpu in gpus(TWO) if gpu[0] == "a"}
    how = {"reason": "loss", "holds": holds, "layouts": {1: TWO}, "resume": resume}
    pods.change(pods.directive(2, LEFT, spec, "a", **how))
    report = survivor.wait(lambda report: all(rank.phase == "done" for rank in report.ranks))
    last = [step for step in report.steps if step.epoch == 1][-1]
    first = next(step for step in report.steps if step.epoch == 2)
    record = a_record(LEFT, epoch=2, reason="loss", outcome="live", closed_s=0.1)
    (change,) = reconfigurations(
        Observed(epochs=(record,), agents={"a": AgentView(pod="a", report=report)})
    )
    assert change.stall_s == pytest.approx(first.start_s - last.end_s, abs=OTHER_RANK_S)
    assert change.stall_s > change.parts["detect_s"] > SILENCE_S - STEP_S
    assert sum(change.parts.values()) == pytest.approx(change.stall_s)


def test_a_killed_store_does_not_touch_the_running_world_and_comes_back(
    pods: Pods, spec: TrainingSpec
) -> None:
    before = pods.pods["b"].report()
    assert before.store_pid is not None
    os.kill(before.store_pid, signal.SIGKILL)
    after = pods.pods["b"].wait(lambda report: report.store not in (None, before.store))
    assert after.store_pid != before.store_pid
    holds = dict.fromkeys(gpus(TWO), 1)
    pods.change(pods.directive(2, LEFT, spec, "b", reason="drain", holds=holds, layouts={1: TWO}))
    pods.pods["a"].wait(lambda report: all(rank.phase == "done" for rank in report.ranks))
    curve_is_exact(pods, spec)


def test_a_killed_fork_server_ends_the_pod(pods: Pods) -> None:
    pid = pods.pods["b"].report().fork_server_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert pods.pods["b"].process.wait(timeout=10) == 1
    pods.pods["a"].wait(lambda report: all(rank.phase == "halted" for rank in report.ranks))


def scales(pods: Pods) -> dict[int, tuple[float | None, bool]]:
    """{step: its loss scale, and whether it was an update}."""
    rows = [step for pod in pods.pods.values() for step in pod.report().steps]
    return {row.step: (row.loss_scale, math.isfinite(row.gradient_norm)) for row in rows}


def test_in_fp16_loss_scale_and_skipped_steps_are_those_of_an_unbroken_run(
    tmp_path: Path, spec: TrainingSpec
) -> None:
    """The scale begins so high that some ten steps overflow, and the kill falls among them."""
    low = {"precision": "fp16", "loss_scale": LossScale(initial=2**34, window=4)}
    spec, victim = spec.model_copy(update=low), ("a", 0)
    found = []
    for is_broken in (False, True):
        folder = tmp_path / str(is_broken)
        folder.mkdir()
        pods = Pods(folder)
        try:
            pods.start("a", "b", gpus=2)
            pods.change(pods.directive(1, TWO, spec, "b", reason="start"))
            if is_broken:
                pods.pods["a"].wait(lambda report: any(rank.step >= 3 for rank in report.ranks))
                os.kill(pods.ranks(victim[0])[victim[1]].pid, signal.SIGKILL)
                resume = survivors_halt(pods, ("a", "b"), time.monotonic(), {victim})
                holds = {gpu: 1 for gpu in gpus(TWO) if gpu != victim}
                how = {"reason": "loss", "holds": holds, "layouts": {1: TWO}, "resume": resume}
                pods.change(pods.directive(2, TWO, spec, "a", **how))
            pods.pods["a"].wait(lambda report: all(rank.phase == "done" for rank in report.ranks))
            found.append(scales(pods))
        finally:
            pods.close()
    unbroken, broken = found
    assert sorted(unbroken) == list(range(spec.steps))
    assert broken == unbroken
    assert sum(not is_update for _, is_update in unbroken.values()) >= 5
    assert sum(is_update for _, is_update in unbroken.values()) >= 10
