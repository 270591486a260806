"""The recorder keeps what it is told once, and the newest of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle.train.pod_steps import STEPS_KEPT
from heddle.train.recorder import EpochTimes, Happened, Recorder
from heddle.train.script import Event
from heddle_operator.state.epoch_record import EpochRecord
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job, a_report
from tests.fakes.planner import fake_plan
from tests.unit.heddle.train.recorded import recorded
from worker.contract import RankReport, StepRecord, SwitchRecord


def step(epoch, index, start_s, loss=1.0):
    return StepRecord(
        epoch=epoch, step=index, loss=loss, gradient_norm=1.0, start_s=start_s, end_s=start_s + 0.1
    )  # fmt: skip


def report(*steps, pod="p", ranks=(), switches=()):
    return a_report(job="j", pod=pod, node="n", steps=steps, ranks=ranks, switches=switches)


def test_a_step_that_is_told_twice_is_kept_once():
    recorder = Recorder()
    recorder.take_report(report(step(1, 0, 0.0), step(1, 1, 1.0)))
    recorder.take_report(report(step(1, 1, 1.0), step(1, 2, 2.0)))
    assert [s.step for s in recorder.steps_of(1)] == [0, 1, 2]
    assert recorder.step == 3


def test_a_long_run_keeps_its_first_and_newest_steps_and_every_loss():
    recorder, count = Recorder(), 3 * STEPS_KEPT
    for index in range(count):
        memory = {"memory_bytes": 900 if index == 5 else 100}
        told = step(1, index, 0.5 * index, loss=float(index)).model_copy(update=memory)
        recorder.take_report(report(told))
    kept = [found.step for found in recorder.steps_of(1)]
    assert kept == [0, *range(count - STEPS_KEPT, count)]
    assert recorder.step == count
    assert recorder.step_s(1) == pytest.approx(0.5)
    assert recorder.memory_bytes(1) == 900
    assert recorder.losses() == tuple(map(float, range(count)))
    recorder.take_report(report(step(1, 7, 3.5, loss=7.0)))
    assert [found.step for found in recorder.steps_of(1)] == kept


def test_the_pod_is_asked_that_saw_the_most_steps():
    recorder = Recorder()
    recorder.take_report(report(*(step(1, i, float(i)) for i in range(3)), pod="b"))
    recorder.take_report(report(step(1, 1, 1.0), step(1, 0, 0.0), pod="a"))
    assert [found.step for found in recorder.steps_of(1)] == [0, 1, 2]
    recorder.take_report(report(*(step(1, i, float(i)) for i in (3, 2)), pod="a"))
    assert [found.step for found in recorder.steps_of(1)] == [0, 1, 2, 3]


def test_an_old_report_that_comes_late_changes_no_loss():
    recorder = Recorder()
    recorder.take_report(report(step(2, 1, 3.0, 3.5)))
    recorder.take_report(report(step(1, 0, 0.0, 5.0), step(1, 1, 1.0, 4.0)))
    assert recorder.losses() == (5.0, 3.5)


def test_the_first_step_of_an_epoch_does_not_count_for_its_median():
    recorder = Recorder()
    recorder.take_report(report(*(step(1, i, t) for i, t in enumerate((0.0, 9.0, 9.5, 10.0)))))
    assert recorder.step_s(1) == pytest.approx(0.5)


def test_of_a_step_that_was_trained_again_the_later_loss_counts():
    recorder = Recorder()
    recorder.take_report(report(step(1, 0, 0.0, 5.0), step(1, 1, 1.0, 4.0)))
    recorder.take_report(report(step(2, 1, 3.0, 3.5)))
    assert recorder.losses() == (5.0, 3.5)


def test_a_switch_record_grows_until_its_first_step():
    recorder = Recorder()
    told = SwitchRecord(epoch=2, slot=0, pid=1, step=5, stopped_s=1.0, laps={"drain": 1.1})
    recorder.take_report(report(switches=(told,)))
    assert recorder.stall(2) is None
    recorder.take_report(report(switches=(told.model_copy(update={"first_step_s": 1.5}),)))
    assert recorder.stall(2).stall_s == pytest.approx(0.5)
    assert recorder.stalls_s() == (pytest.approx(0.5),)


def test_processes_are_those_that_train_the_epoch():
    recorder = Recorder()
    rank = RankReport(slot=0, pid=7, started_s=1.0, phase="training", rank=0, epoch=1)
    waits = RankReport(slot=1, pid=8, started_s=1.0, phase="prepared", pending_epoch=2)
    recorder.take_report(report(ranks=(rank, waits)))
    assert {epoch: sorted(ranks) for epoch, ranks in recorder.processes.items()} == {1: [0]}
    assert recorder.processes[1][0]["pid"] == 7


def test_the_stall_of_a_loss_is_no_price_of_a_planned_move():
    recorder = Recorder()
    told = SwitchRecord(
        epoch=2, slot=0, pid=1, step=5, stopped_s=1.0, laps={"drain": 1.1}, first_step_s=9.5
    )
    recorder.take_report(report(switches=(told,)))
    composition = Composition((Node(name="a", gpu_type="demo-fast", gpus=1),))
    plan = fake_plan(composition, a_job().workload)
    for reason, stalls_s in (("join", (pytest.approx(8.5),)), ("loss", ())):
        recorder.epochs = (
            EpochRecord(epoch=2, plan=plan, reason=reason, composition=composition, adopted_s=0.0),
        )
        assert recorder.stalls_s() == stalls_s


def test_the_kill_that_stands_beside_a_loss_is_that_of_its_own_time():
    """A node without a rank may be killed long before, and another one after the loss."""
    recorder = Recorder()
    kill = Event(0, "kill", "a")
    recorder.happened = [Happened(at_s, kill) for at_s in (3.0, 10.3, 30.0)]
    recorder.happened.append(Happened(10.4, Event(0, "drain", "a")))
    recorder.take_report(report(*(step(1, i, 9.0 + i) for i in range(2))))
    told = SwitchRecord(
        epoch=2, slot=0, pid=1, step=2, stopped_s=10.1, halted_s=20.3, first_step_s=21.1,
        laps={"drain": 20.9},
    )  # fmt: skip
    recorder.take_report(report(switches=(told,)))
    composition = Composition((Node(name="a", gpu_type="demo-fast", gpus=1),))
    plan = fake_plan(composition, a_job().workload)
    recorder.epochs = (
        EpochRecord(epoch=2, plan=plan, reason="loss", composition=composition, adopted_s=0.0),
    )
    recorder.times[2] = EpochTimes(20.4, 20.4)
    stall = recorder.stall(2)
    assert stall.stall_s == pytest.approx(11.0)
    assert recorder.from_kill_s(2) == pytest.approx(10.8)
    assert stall.parts["detect_s"] == pytest.approx(10.2)


def test_ranks_hold_a_state_until_the_epoch_that_trained_is_lost():
    found = recorded()
    assert found.holds_state
    lost = replace(found.epochs[-1], outcome="lost")
    found.epochs = (*found.epochs[:-1], lost)
    assert not found.holds_state
    found.epochs = (lost, replace(lost, epoch=4, outcome="open"))  # it is still prepared
    assert not found.holds_state
    found.take_report(report(step(4, 5, 110.0)))
    assert found.holds_state
    assert not Recorder().holds_state
