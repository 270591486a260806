"""Slow ranks are named and waited for; an epoch in which nobody gets on hangs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heddle_operator.state.progress import (
    not_finite_steps,
    progress_times,
    slow_ranks,
    stalled,
)
from heddle_operator.state.settings import Settings
from heddle_operator.state.snapshot import AgentView
from tests.fakes.operator import FakeOperator, a_cluster, a_job, a_report
from worker.contract import READING, READING_S, RankReport, StepRecord

LIMITS = Settings()


def a_rank(**values):
    return RankReport(slot=0, pid=1, started_s=0.0, phase="training", **values)


def report(*ranks, steps=()):
    return a_report(ranks=ranks, steps=steps)


def seen(idle_s, step_s=None, **changes):
    """A job on a and b whose ranks made no progress for so long; b={"waiting": True}."""
    job = a_job()
    cluster = a_cluster(job, "a", "b")
    FakeOperator(job, cluster).settle()
    observed, agents = cluster.snapshot(), {}
    for name, view in observed.agents.items():
        values = {"part": "transfer", **changes.get(name.split("-")[1], {})}
        ranks = tuple(rank.model_copy(update=values) for rank in view.report.ranks)
        heard_s = cluster.now + idle_s
        report = view.report.model_copy(update={"ranks": ranks})
        times = {0: cluster.now}
        agents[name] = replace(view, report=report, heard_s=heard_s, progressed_s=times)
    record = replace(observed.epochs[-1], step_s=step_s)
    return replace(observed, agents=agents, epochs=(record,)), record


@pytest.mark.parametrize(
    "change",
    [{"step": 1}, {"progress": 1}, {"part": "build"}, {"pending_epoch": 2}, {"phase": "switching"}],
)
def test_whatever_a_rank_gets_done_is_progress(change):
    before = AgentView(pod="p", report=report(a_rank()), progressed_s={0: 5.0})
    assert progress_times(before, report(a_rank()), 9.0) == {0: 5.0}
    assert progress_times(before, report(a_rank().model_copy(update=change)), 9.0) == {0: 9.0}


def test_a_heartbeat_alone_is_no_progress():
    before = AgentView(pod="p", report=report(a_rank(beat_age_s=0.9)), progressed_s={0: 5.0})
    assert progress_times(before, report(a_rank(waiting=True)), 9.0) == {0: 5.0}


def test_an_epoch_hangs_when_none_of_its_ranks_makes_progress():
    assert stalled(*seen(59.0), LIMITS) == ""
    said = stalled(*seen(60.0, a={"waiting": True}), LIMITS)
    assert said == (
        "no rank of epoch 1 has made progress for 60 s: the rank on GPU 0 of b (in part transfer)"
    )


def test_long_steps_are_waited_for():
    assert stalled(*seen(399.0, step_s=20.0), LIMITS) == ""
    assert stalled(*seen(400.0, step_s=20.0), LIMITS)


def test_a_disk_of_data_is_waited_for_and_its_readers_are_named():
    reads = {"a": {"part": READING}, "b": {"part": READING}}
    assert stalled(*seen(READING_S - 1, **reads), LIMITS) == ""
    assert stalled(*seen(READING_S, **reads), LIMITS)
    assert slow_ranks(*seen(9.0, **reads), LIMITS) == ""
    assert slow_ranks(*seen(10.0, **reads), LIMITS) == (
        "epoch 1 waits for the rank on GPU 0 of a (in part reading data), "
        "the rank on GPU 0 of b (in part reading data)"
    )


def test_an_epoch_does_not_hang_while_one_rank_gets_on_or_a_loss_is_told_of():
    observed, record = seen(100.0)
    view = observed.agents["tiny-a-0"]
    moves = replace(view, progressed_s={0: view.heard_s - 1})
    agents = {**observed.agents, "tiny-a-0": moves}
    assert stalled(replace(observed, agents=agents), record, LIMITS) == ""
    assert stalled(*seen(100.0, a={"phase": "halted"}), LIMITS) == ""
    assert stalled(*seen(100.0, a={"phase": "done"}, b={"phase": "saving"}), LIMITS) == ""


def test_an_operator_that_was_held_up_takes_nobody_for_stuck():
    """Time that passed since the newest report counts for nothing."""
    observed, record = seen(1.0)
    assert stalled(observed, record, LIMITS) == ""


def test_who_is_waited_for_is_named_with_its_part():
    assert slow_ranks(*seen(9.0, a={"waiting": True}), LIMITS) == ""
    said = slow_ranks(*seen(10.0, a={"waiting": True}), LIMITS)
    assert said == "epoch 1 waits for the rank on GPU 0 of b (in part transfer)"
    assert slow_ranks(*seen(10.0), LIMITS) == ""
    both = {"a": {"waiting": True}, "b": {"waiting": True}}
    assert slow_ranks(*seen(10.0, **both), LIMITS) == ""


def a_step(step, loss=1.0, norm=1.0):
    return StepRecord(epoch=1, step=step, loss=loss, gradient_norm=norm, start_s=0.0, end_s=1.0)


def test_steps_that_are_not_finite_are_kept_though_reports_tell_only_of_new_ones():
    first = report(steps=(a_step(1), a_step(2, loss=float("nan"))))
    view = AgentView(pod="p", report=first, not_finite=not_finite_steps(None, first))
    second = report(steps=(a_step(3, norm=float("inf")), a_step(4)))
    assert [record.step for record in not_finite_steps(view, second)] == [2, 3]


def test_a_step_that_fp16_skips_for_a_smaller_loss_scale_is_no_divergence():
    overflow, lost = a_step(2, norm=math.nan), a_step(3, loss=math.nan, norm=math.nan)
    steps = [step.model_copy(update={"loss_scale": 1024.0}) for step in (overflow, lost)]
    smallest = overflow.model_copy(update={"step": 4, "loss_scale": 1.0})
    found = not_finite_steps(None, report(steps=(*steps, smallest)))
    assert [record.step for record in found] == [3, 4]
