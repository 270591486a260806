"""What failed is remembered in the records, and not tried again at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.rules.failures import (
    GPU_PAUSE_S,
    PLAN_PAUSE_S,
    causes_of,
    comes_again,
    device_failure,
    failed_attempt,
    failed_gpus,
    failures_of,
    is_remembered,
)
from heddle_operator.state.actions import RecordEvent
from heddle_operator.state.epoch_record import Failure
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import situation
from tests.fakes.operator import FakeOperator, a_job, running_on, view_of, waiting
from worker.contract import RankExit, RankReport

BROKEN = Failure(kind="device", sentence="out of memory", epoch=1, step=7, gpus=(("b", 0),))
WRONG = Failure(
    kind="other",
    sentence="ValueError: token 300 is beyond the vocabulary",
    epoch=1,
    step=7,
    gpus=(("b", 0),),
)


def failing(cluster, node, kind="device", error="out of memory"):
    rank = RankReport(slot=0, pid=1, started_s=0, phase="training", error=error, error_kind=kind)
    cluster.failing[node] = rank


def outcomes(cluster):
    return [(record.epoch, record.reason, record.outcome) for record in cluster.records.all]


def read(cluster):
    return situation(cluster.snapshot(), cluster.now, Settings())


def test_a_change_is_given_up_as_soon_as_a_rank_says_that_it_failed():
    operator, cluster = running_on("a")
    failing(cluster, "b")
    cluster.add_node("b")
    operator.run(lambda _: any(r.failed_epoch for a in cluster.agents.values() for r in
                               a.ranks.values()))  # fmt: skip
    failed_s = cluster.now
    operator.run(lambda _: cluster.records.all[-1].outcome == "aborted")
    assert cluster.now - failed_s <= 1.0
    (failure,) = cluster.records.all[-1].failures
    assert failure == Failure(
        kind="device", sentence="out of memory", epoch=2, step=0, gpus=(("b", 0),)
    )


def test_the_same_plan_is_not_tried_again_on_the_same_nodes_for_10_minutes():
    operator, cluster = running_on("a", "b")
    failing(cluster, "a", "other", "ValueError: no such layer")  # it trains on with the old plan
    cluster.add_node("c")
    operator.settle()
    failed = cluster.records.all[-1]
    assert (failed.reason, failed.outcome) == ("join", "aborted")
    assert (
        "the better one failed in epoch 2: ValueError: no such layer" in operator.decision.message
    )
    cluster.failing.clear()
    again = FakeOperator(operator.job, cluster)  # an operator that starts anew knows of it
    left_s = failed.closed_s + PLAN_PAUSE_S - cluster.now
    while left_s > 1.0:
        again.reconcile()
        assert len(cluster.records.all) == 2
        cluster.tick(min(30.0, left_s - 0.5))
        left_s = failed.closed_s + PLAN_PAUSE_S - cluster.now
    cluster.tick(1.0)
    again.settle()
    assert outcomes(cluster)[2:] == [(3, "join", "live")]


def test_a_lost_peer_is_no_fault_of_the_plan():
    operator, cluster = running_on("a")
    failing(cluster, "b", "lost peer", "connection closed")
    cluster.add_node("b")
    operator.run(lambda _: len(cluster.records.all) >= 3)
    assert [record.failures for record in cluster.records.all] == [(), (), ()]
    cluster.failing.clear()
    operator.settle(100)
    assert outcomes(cluster)[-1][1:] == ("join", "live")


def halted(cluster, node, failure):
    agent = cluster.agents[f"tiny-{node}-0"]
    agent.change(0, phase="halted", error=failure.sentence, error_kind=failure.kind)


def test_errors_of_halted_ranks_are_the_cause_of_the_next_epoch():
    operator, cluster = running_on("a", "b")
    step = cluster.agents["tiny-b-0"].ranks[0].step
    halted(cluster, "b", BROKEN)
    assert causes_of(read(cluster)) == (replace(BROKEN, step=step),)
    operator.run(lambda _: len(cluster.records.all) == 2)
    assert cluster.records.all[-1].cause == (replace(BROKEN, step=step),)


def ended(cluster, node, failure):
    """Its rank says why, and is gone before the operator looks."""
    halted(cluster, node, failure)
    cluster.kill_rank(f"tiny-{node}-0", 0, 1)


def test_a_rank_that_ended_by_its_device_leaves_its_gpu_out():
    operator, cluster = running_on("a", "b")
    step = cluster.agents["tiny-b-0"].ranks[0].step
    ended(cluster, "b", BROKEN)
    assert causes_of(read(cluster)) == (replace(BROKEN, step=step),)
    operator.settle()
    assert cluster.records.all[-1].cause == (replace(BROKEN, step=step),)
    assert cluster.records.all[-1].plan.nodes == ("a",)
    assert causes_of(read(cluster)) == ()  # it is on record, and another epoch is live


@pytest.mark.parametrize("kind", ["lost peer", "other"])
def test_one_that_ended_by_anything_else_does_not(kind):
    operator, cluster = running_on("a", "b")
    ended(cluster, "b", replace(BROKEN, kind=kind))
    assert causes_of(read(cluster)) == ()
    operator.settle()
    assert cluster.records.all[-1].plan.nodes == ("a", "b")


def test_a_gpu_that_failed_is_left_out_for_10_minutes_and_longer_each_time():
    operator, cluster = running_on("a", "b")
    halted(cluster, "b", BROKEN)
    operator.settle()
    assert cluster.records.all[-1].plan.nodes == ("a",)
    observed, now = cluster.snapshot(), cluster.now
    record = observed.epochs[-1]
    left = failed_gpus(view_of(a_job(), observed, now, situation=read(cluster)))
    assert left == {("b", 0): pytest.approx(record.adopted_s + GPU_PAUSE_S - now)}
    assert failed_gpus(view_of(a_job(), observed, now + GPU_PAUSE_S, situation=read(cluster))) == {}
    again = replace(BROKEN, epoch=9)
    twice = replace(observed, epochs=(*observed.epochs, replace(record, epoch=10, cause=(again,))))
    left = failed_gpus(view_of(a_job(), twice, now, situation=read(cluster)))
    assert left == {("b", 0): pytest.approx(record.adopted_s + 2 * GPU_PAUSE_S - now)}


def test_a_gpu_on_which_the_old_plan_trains_is_not_left_out():
    operator, cluster = running_on("a", "b")
    failing(cluster, "a")
    cluster.add_node("c")
    operator.run(lambda _: cluster.records.all[-1].outcome == "aborted")
    assert cluster.records.all[-1].failures
    assert (
        failed_gpus(view_of(a_job(), cluster.snapshot(), cluster.now, situation=read(cluster)))
        == {}
    )


def test_an_error_comes_again_if_it_is_the_same_at_the_same_step_in_another_epoch():
    _, cluster = running_on("a")
    record = replace(cluster.records.all[-1], cause=(WRONG,))
    assert comes_again([record], replace(WRONG, epoch=2))
    assert not comes_again([record], WRONG)  # the very same one, not recovered from yet
    assert not comes_again([record], replace(WRONG, epoch=2, step=8))
    assert not comes_again([record], replace(WRONG, epoch=2, sentence="another"))
    assert not comes_again([replace(record, cause=(BROKEN,))], replace(BROKEN, epoch=2))


def test_an_error_comes_again_from_the_same_site_whatever_time_or_address_its_sentence_has():
    _, cluster = running_on("a")
    known = replace(WRONG, site="ValueError in worker.x.f", sentence="<x at 0x7f10> after 3.1 s")
    record = replace(cluster.records.all[-1], cause=(known,))
    again = replace(known, epoch=2, sentence="<x at 0x7f98> after 3.2 s")
    assert comes_again([record], again)
    assert not comes_again([record], replace(again, site="ValueError in worker.x.g"))


def test_a_record_with_errors_is_kept_while_they_count():
    _, cluster = running_on("a")
    record = replace(cluster.records.all[-1], failures=(BROKEN,))
    assert is_remembered(record, record.closed_s + PLAN_PAUSE_S)
    assert not is_remembered(record, record.closed_s + 2 * GPU_PAUSE_S)
    assert not is_remembered(replace(record, failures=()), record.closed_s)
    assert failed_attempt([record], record.plan, record.closed_s) == record
    assert failed_attempt([record], record.plan, record.closed_s + PLAN_PAUSE_S) is None


HANGS = "the first operation of rank 0 on a with rank 1 on b has not ended in 60 s"


def test_a_network_that_hangs_lets_its_plan_rest_until_another_one_lives():
    operator, cluster = running_on("a")
    failing(cluster, "b", "fabric", HANGS)
    cluster.add_node("b")
    operator.run(lambda _: cluster.records.all[-1].outcome == "aborted")
    found = device_failure(view_of(operator.job, cluster.snapshot(), cluster.now))
    assert (found.kind, found.sentence, found.gpus) == ("fabric", HANGS, (("b", 0),))
    assert failed_attempt(cluster.records.all, cluster.records.all[-1].plan, cluster.now)
    assert failed_gpus(view_of(operator.job, cluster.snapshot(), cluster.now)) == {}
    cluster.failing.clear()
    cluster.add_node("c")
    operator.settle()
    assert outcomes(cluster)[-1][2] == "live"
    assert device_failure(view_of(operator.job, cluster.snapshot(), cluster.now)) is None


def test_a_rank_that_joined_and_ended_has_said_what_hangs():
    """It held nothing, so it ends; its agent keeps its words."""
    operator, cluster = running_on("a")
    cluster.add_node("b")
    operator.run(lambda _: bool(cluster.records.all[-1].seal) and len(cluster.records.all) == 2)
    record, agent = cluster.records.all[-1], cluster.agents["tiny-b-0"]
    assert failures_of(record, cluster.snapshot()) == ()
    gone = RankExit(slot=0, pid=99, code=0, at_s=0.0, error=HANGS, error_kind="fabric")
    agent.exits.append(gone)
    (found,) = failures_of(record, cluster.snapshot())
    assert (found.kind, found.sentence, found.gpus) == ("fabric", HANGS, (("b", 0),))
    earlier = replace(record, seal=replace(record.seal, known_exits=(("tiny-b-0", 99),)))
    assert failures_of(earlier, cluster.snapshot()) == ()


DEAD = "the device failed: CUDA error: device-side assert triggered"


def failed_at_its_start(operator, nodes, kind="device", sentence=DEAD):
    """The next record with failures: each process there ends before it says that it is prepared."""
    cluster = operator.cluster
    known = len(cluster.records.all)

    def ends(_):
        for agent in cluster.agents.values():
            if agent.node in nodes and 0 in agent.ranks:
                agent.change(0, error=sentence, error_kind=kind)
                cluster.kill_rank(agent.pod, 0, 1)
        return any(record.failures for record in cluster.records.all[known:])

    operator.run(ends)
    return next(record for record in cluster.records.all[known:] if record.failures)


@pytest.mark.parametrize("first", [("a", "b"), ("a",)], ids=["start", "join"])
def test_a_gpu_whose_rank_ends_at_its_start_is_left_out_for_longer_each_time(first):
    operator = waiting(*first)
    job, cluster = operator.job, operator.cluster
    if "b" not in first:
        operator.settle()
        cluster.add_node("b")
    for pause_s in (GPU_PAUSE_S, 2 * GPU_PAUSE_S):
        found = failed_at_its_start(operator, "b")
        assert found.failures == (
            Failure(kind="device", sentence=DEAD, epoch=found.epoch, step=0, gpus=(("b", 0),)),
        )
        left = failed_gpus(view_of(job, cluster.snapshot(), cluster.now))
        assert left == {("b", 0): pytest.approx(found.closed_s + pause_s - cluster.now)}
        operator.settle()
        assert read(cluster).live.plan.nodes == ("a",)
        tried = len(cluster.records.all)
        cluster.tick(pause_s - 60.0)
        operator.settle()
        assert len(cluster.records.all) == tried  # no further attempt before the pause is over
        cluster.tick(60.0)


MIXED = "ranks of this job have NCCL 2.28.9 and 2.30.7, and one version is needed"


def test_what_concerns_the_whole_job_leaves_no_gpu_out_and_is_why_the_job_waits():
    nodes = "abcd"
    operator = waiting(*nodes, minGPUs=4)
    job, cluster = operator.job, operator.cluster
    for _ in range(3):
        record = failed_at_its_start(operator, nodes, "setup", MIXED)
        (failure,) = record.failures
        assert (failure.kind, failure.sentence) == ("setup", MIXED)
        assert failed_gpus(view_of(job, cluster.snapshot(), cluster.now)) == {}
        assert device_failure(view_of(job, cluster.snapshot(), cluster.now)) == failure
    decision = operator.reconcile()
    assert (decision.phase, decision.reason) == ("Pending", "SetupRefused")
    assert MIXED in decision.message
    closed = [record.closed_s for record in cluster.records.all]
    pauses = [record.adopted_s - before for record, before in
              zip(cluster.records.all[1:], closed, strict=False)]  # fmt: skip
    assert pauses == sorted(pauses)
    assert pauses[-1] > pauses[0]
    operator.settle()  # the cause is gone
    assert device_failure(view_of(job, cluster.snapshot(), cluster.now)) is None


def test_a_job_that_needs_a_gpu_that_failed_says_so_and_tries_it_again():
    operator = waiting("a", "b", minGPUs=2)
    failed_at_its_start(operator, "b")
    decision = operator.reconcile()
    assert (decision.phase, decision.reason) == ("Pending", "GPUFailed")
    assert decision.message == (
        f"the job waits: 1 GPU is usable, minGPUs is 2 (GPU 0 of b failed: {DEAD})"
    )
    assert [a.reason for a in decision.actions if isinstance(a, RecordEvent)] == ["GPUFailed"]
    assert 0 < decision.look_again_s <= GPU_PAUSE_S
    operator.cluster.tick(decision.look_again_s)
    operator.settle()
    assert read(operator.cluster).live.plan.nodes == ("a", "b")
