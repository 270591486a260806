"""Whether to move to another plan, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.apis.spec import Elastic
from heddle_operator.rules.gain import (
    backoff_s,
    expected_change_s,
    expected_stall_s,
    failed_in_a_row,
    judge,
    quiet_left_s,
)
from heddle_operator.state.epoch_record import Seal
from heddle_operator.state.plan_reply import PlanReply
from heddle_operator.state.reasons import MoveCause
from heddle_operator.state.settings import Settings
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job, a_record
from tests.fakes.planner import fake_plan
from worker.contract import Resume

ONE = Composition((Node(name="a", gpu_type="demo-fast", gpus=1),))
TWO = Composition(
    (Node(name="a", gpu_type="demo-fast", gpus=1), Node(name="b", gpu_type="demo-fast", gpus=1))
)
OLD = fake_plan(ONE, a_job().workload)
NEW = fake_plan(TWO, a_job().workload)
LEFT = MoveCause("NodeLeaving", "a left")


def verdict(gain, forced=None, current=OLD, plan=NEW, fits=True, change_s=600.0, stall_s=1.0):
    reply = PlanReply(
        plan=plan,
        throughput_samples_s=100.0 * (1 + gain),
        current_samples_s=100.0 if fits else None,
    )
    return judge(reply, current, forced, Elastic(), change_s, stall_s)


@pytest.mark.parametrize(
    ("case", "adopts", "words"),
    [
        ({"gain": 0.0, "current": None}, True, "the job starts"),
        ({"gain": -0.5, "forced": LEFT, "fits": False}, True, "the job moves: a left"),
        ({"gain": 0.0, "plan": OLD}, False, "no better one"),
        ({"gain": 0.0, "plan": OLD, "fits": False}, False, "no better one"),
        ({"gain": -0.5, "fits": False}, True, "the job moves: its plan has no price"),
        (
            {"gain": 0.008},
            False,
            "the plan is kept: a gain of +0.8 % does not pay, minGainPercent is 2",
        ),
        ({"gain": 0.5}, True, "the job moves: a gain of +50.0 % pays"),
        ({"gain": 0.05, "change_s": 10.0}, False, "the next change is expected in 10 s"),
        ({"gain": 0.05, "change_s": 30.0}, True, "the job moves"),
        ({"gain": 0.05, "stall_s": 60.0}, False, "a move takes 60.00 s"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_plan_is_adopted_only_if_it_is_forced_or_pays(case, adopts, words):
    found = verdict(**case)
    assert found.adopts is adopts
    assert words in found.sentence


@pytest.mark.parametrize(
    ("held", "will_hold", "adopts"), [(1, 2, True), (1, 1, False), (2, 3, False), (0, 2, False)]
)
def test_the_holders_that_a_job_asks_for_come_before_gain(held, will_hold, adopts):
    reply = PlanReply(
        plan=NEW,
        throughput_samples_s=90.0,
        current_samples_s=100.0,
        holders_min=will_hold,
        current_holders=held,
    )
    found = judge(reply, OLD, None, a_job(minHolders=2).spec.elastic, 600.0, 1.0)
    assert (found.adopts, found.is_safer) == (adopts, adopts)
    if adopts:
        assert found.sentence == (
            "the job moves: every piece of the state is then on 2 nodes at least, not on 1 as now; "
            "minHolders is 2"
        )


def record(epoch, outcome, closed_s):
    return a_record(OLD, ONE, epoch, reason="join", outcome=outcome, closed_s=closed_s)


def test_the_expected_change_is_the_jobs_own_once_it_has_seen_three():
    few = tuple(record(i + 1, "live", 10.0 * i) for i in range(3))
    assert expected_change_s(few, 21.0, Settings()) == 600.0
    more = (*few, record(4, "live", 60.0))
    assert expected_change_s(more, 60.0, Settings()) == pytest.approx(20.0)


def test_time_without_a_change_lengthens_what_is_expected():
    quick = tuple(record(i + 1, "live", 10.0 * i) for i in range(4))
    assert expected_change_s(quick, 30.0, Settings()) == pytest.approx(10.0)
    assert expected_change_s(quick, 90.0, Settings()) == pytest.approx(30.0)


@pytest.mark.parametrize("now", [30.0, 50.0, 89.0])
def test_what_does_not_pay_in_a_restless_hour_pays_after_the_time_that_is_told(now):
    quick = tuple(record(i + 1, "live", 10.0 * i) for i in range(4))
    kept = verdict(0.5, change_s=expected_change_s(quick, now, Settings()), stall_s=15.0)
    assert not kept.adopts
    wait_s = quiet_left_s(quick, now, kept.pays_from_change_s, Settings())
    for after_s, adopts in ((wait_s - 0.2, False), (wait_s, True)):
        change_s = expected_change_s(quick, now + after_s, Settings())
        assert verdict(0.5, change_s=change_s, stall_s=15.0).adopts is adopts


def test_no_quiet_time_changes_what_the_setting_expects():
    assert quiet_left_s((record(1, "live", 0.0),), 1.0, 30.0, Settings()) is None


def test_the_expected_stall_is_the_median_of_the_measured():
    assert expected_stall_s((), Settings()) == 1.0
    assert expected_stall_s((0.1, 0.2, 9.0), Settings()) == 0.2


def test_aborts_in_a_row_back_off_and_a_live_epoch_ends_the_row():
    seal = Seal(members=(), store="s:1", resume=None, sealed_s=0.0)
    aborted = tuple(replace(record(i + 1, "aborted", 0.0), seal=seal) for i in range(9))
    pauses = [backoff_s(aborted[:count], Settings()) for count in range(10)]
    assert pauses == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff_s((*aborted, record(10, "live", 0.0)), Settings()) == 0


def test_an_epoch_that_never_told_its_ranks_of_it_costs_no_pause():
    aborted = tuple(record(i + 1, "aborted", 0.0) for i in range(9))
    assert backoff_s(aborted, Settings()) == 0


def test_losses_at_one_step_back_off_like_aborts_and_those_at_another_do_not():
    def loss(epoch, step):
        seal = Seal(members=(), store="s:1", resume=Resume(step=step), sealed_s=0.0)
        return replace(record(epoch, "live", 0.0), reason="loss", seal=seal)

    first = record(1, "live", 0.0)
    losses = tuple(loss(epoch, 7) for epoch in range(2, 7))
    pauses = [backoff_s((first, *losses[:count]), Settings(), step=7) for count in range(5)]
    assert pauses == [0, 0, 1, 2, 4]
    assert backoff_s((first, *losses), Settings(), step=8) == 0
    assert backoff_s((first, *losses), Settings()) == 0


def test_a_suspension_before_the_first_step_is_no_failed_attempt():
    sealed = Seal(members=(), store="s:1", resume=Resume(step=7), sealed_s=0.0)
    tried = [
        replace(record(number, outcome, 0.0), seal=sealed)
        for number, outcome in enumerate(("lost", "suspended", "lost"), 1)
    ]
    assert failed_in_a_row(tuple(tried), 7) == 1
    assert failed_in_a_row(tuple(tried[:2]), 7) == 0


def test_another_plan_that_is_no_faster_never_pays_even_if_no_gain_is_asked_for():
    reply = PlanReply(plan=NEW, throughput_samples_s=100.0, current_samples_s=100.0)
    kept = judge(reply, OLD, None, Elastic(minGainPercent=0), 600.0, 1.0)
    assert (kept.adopts, kept.pays_from_change_s) == (False, None)


@pytest.mark.parametrize(
    ("price", "current_price", "gain"),
    [(None, None, -0.5), (1.0, 4.0, 1.0), (0.0, 0.0, -0.5), (2.0, 1.0, -0.75)],
)
def test_where_money_decides_the_gain_is_of_samples_for_the_same_money(price, current_price, gain):
    reply = PlanReply(
        plan=NEW,
        throughput_samples_s=50.0,
        current_samples_s=100.0,
        price=price,
        current_price=current_price,
    )
    assert reply.gain == pytest.approx(gain)
