"""A tiny run as it was recorded: two nodes train, a third joins after five of ten steps."""

from __future__ import annotations

from pathlib import Path

from heddle.demo.job import demo_job
from heddle.demo.run import DemoOptions, DemoRun
from heddle.train.recorder import Happened, Recorder, Refused
from heddle.train.result import RunFacts
from heddle.train.script import Event
from heddle_operator.state.epoch_record import EpochRecord
from planner.cluster.composition import Composition
from planner.plans.plan import Plan
from tests.builders import demo_profile, nodes, placed, template
from tests.fakes.operator import a_record, a_report
from worker.contract import LAPS, RankReport, Report, StepRecord, SwitchRecord

JOB = demo_job(10, 1)
PROFILE = demo_profile()
TWO = nodes("fast-1:1 fast-2:1")
THREE = nodes("fast-1:1 fast-2:1 fast-3:2")
FIRST = placed(template("1x3 1x3", 4, (8,)), composition=TWO)
SECOND = placed(template("1x3 1x3", 4, (4,)), template("2x6", 4, (4,)), composition=THREE)
STEP_S = 0.25
STOPPED_S, RESUMED_S = 101.25, 101.5  # between them nothing was trained
FACTS = RunFacts(
    restart_s=7.5,
    reference_losses=tuple(5.0 - 0.1 * step for step in range(10)),
    orphan_processes=0,
    engine="an engine",
    seed=1,
    evaluations=600,
    emulated=True,
)


def steps(epoch: int, first: int, begin_s: float) -> tuple[StepRecord, ...]:
    """Five steps whose loss falls by 0.1 each."""
    return tuple(
        StepRecord(
            epoch=epoch,
            step=first + i,
            loss=5.0 - 0.1 * (first + i),
            gradient_norm=1.0,
            start_s=begin_s + STEP_S * i,
            end_s=begin_s + STEP_S * i + 0.24,
        )
        for i in range(5)
    )


def switch(slot: int, stopped_s: float | None, received: int, digest: str = "d" * 16):
    """One rank's part of the switch to epoch 2, its parts 20 ms each, shifted by its slot."""
    laps = {name: STOPPED_S + 0.02 * (i + 1) + 0.001 * slot for i, name in enumerate(LAPS)}
    return SwitchRecord(
        epoch=2,
        slot=slot,
        pid=10 + slot,
        step=5,
        stopped_s=stopped_s,
        laps=laps,
        first_step_s=RESUMED_S,
        bytes_received=received,
        bytes_needed=received,
        state_digest_before=digest,
        state_digest_after=digest,
    )


def report(pod: str, *records: StepRecord, switches=(), ranks=()) -> Report:
    """What one agent tells."""
    return a_report(
        job="demo",
        pod=pod,
        node=pod.removeprefix("demo-").removesuffix("-0"),
        steps=records,
        switches=switches,
        ranks=ranks,
    )


def rank(slot: int, number: int, epoch: int) -> RankReport:
    """A rank that trains."""
    return RankReport(
        slot=slot, pid=10 + number, started_s=50.0, phase="training", rank=number, epoch=epoch
    )


def recorded() -> Recorder:
    """The run, as its reports told it."""
    found = Recorder()
    found.phase, found.reason = "Complete", "all steps are trained"
    found.epochs = (
        _record(1, FIRST, "start", TWO),
        _record(2, SECOND, "join", THREE),
        _record(3, FIRST, "drain", TWO),  # adopted, and never trained a step
    )
    found.take_report(report("demo-fast-1-0", *steps(1, 0, 100.0), ranks=(rank(0, 0, 1),)))
    found.take_report(
        report(
            "demo-fast-1-0",
            *steps(2, 5, RESUMED_S),
            switches=(switch(0, STOPPED_S, 0),),
            ranks=(rank(0, 0, 2),),
        )
    )
    found.take_report(
        report(
            "demo-fast-3-0",
            switches=(switch(0, None, 3000), switch(1, None, 2000)),
            ranks=(rank(0, 2, 2), rank(1, 3, 2)),
        )
    )
    found.refusals["kept"] = Refused(
        TWO,
        0.8,
        "the plan is kept: a gain of +0.8 % does not pay, minGainPercent is 2",
        102.4,
    )
    found.happened = [
        Happened(100.9, Event(3, "join", "fast-3", THREE.nodes[2])),
        Happened(102.6, Event(9, "kill", "fast-1")),
    ]
    return found


def a_run(folder: Path, composition: Composition = THREE) -> DemoRun:
    """The run's own object with what was recorded and its nodes; none of its processes."""
    run = DemoRun(
        DemoOptions(nodes=composition, script=(), steps=10, seed=1), folder, lambda line: None
    )
    run.recorder = recorded()
    for node in composition.nodes:
        run.cluster.join(node)
    return run


def _record(epoch: int, plan: Plan, reason, composition: Composition) -> EpochRecord:
    return a_record(plan, composition, epoch, reason=reason, adopted_s=90.0 + epoch, outcome="live")
