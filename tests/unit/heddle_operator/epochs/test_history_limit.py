"""Old epoch records go, but none that somebody may still need, and never the newest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_operator.epochs.history_limit import prune_epochs
from heddle_operator.rules.limits import beyond_backoff
from heddle_operator.state.actions import PruneEpoch
from heddle_operator.state.epoch_record import Failure, Seal, StartFailure
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import situation
from heddle_operator.state.snapshot import AgentView, Observed, ObservedPod
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job, a_record, a_report, view_of
from tests.fakes.planner import fake_plan
from worker.contract import Member, RankReport, Resume

NODES = Composition((Node(name="a", gpu_type="demo-fast", gpus=1),))
PLAN = fake_plan(NODES, a_job().workload)
JOB = a_job()
POD = ObservedPod(name="tiny-a-0", node="a", ordinal=0, gpus=1, phase="running")


def an_epoch(epoch, outcome="aborted", holds=()):
    members = tuple(
        Member(pod=f"tiny-{h}-0", slot=0, node="a", gpu=0, rank=None, holds=h) for h in holds
    )
    seal = Seal(members=members, store="s:1", resume=None, sealed_s=0.0) if holds else None
    closed_s = None if outcome == "open" else float(epoch)
    return a_record(
        PLAN, NODES, epoch, reason="join", seal=seal, outcome=outcome, closed_s=closed_s
    )


def a_view(follows=None, **rank):
    held = {"epoch": None, "also_epoch": None, "pending_epoch": None, **rank}
    ranks = (
        (RankReport(slot=0, pid=1, started_s=0.0, phase="training", **held),)
        if any(held.values())
        else ()
    )
    report = a_report(pod=POD.name, epoch=follows, ranks=ranks)
    return AgentView(pod=POD.name, report=report)


def pruned(records, view, kept=2, job=JOB):
    settings = Settings(epochs_kept=kept)
    observed = Observed(pods=(POD,), epochs=tuple(records), agents={POD.name: view} if view else {})
    actions = prune_epochs(
        view_of(
            job, observed, 100.0, situation=situation(observed, 100.0, settings), settings=settings
        )
    )
    assert all(isinstance(action, PruneEpoch) for action in actions)
    return [action.epoch for action in actions]


TEN = [an_epoch(n) for n in range(1, 10)] + [an_epoch(10, "live")]


def test_the_newest_stay_for_history_and_older_ones_go():
    assert pruned(TEN, a_view(epoch=10), kept=4) == [1, 2, 3, 4, 5, 6]
    assert pruned(TEN, a_view(epoch=10), kept=20) == []


@pytest.mark.parametrize(
    ("view", "needed"),
    [
        (a_view(epoch=3), 3),
        (a_view(epoch=10, also_epoch=4), 4),
        (a_view(epoch=10, pending_epoch=5), 5),
        (a_view(follows=6), 6),
    ],
    ids=["held", "held as well", "prepared", "followed"],
)
def test_a_record_stays_while_an_agent_or_its_ranks_may_need_it(view, needed):
    assert pruned(TEN, view) == [n for n in range(1, 9) if n != needed]


def test_the_live_and_the_pending_record_stay_however_old():
    live = [an_epoch(1), an_epoch(2, "live"), *(an_epoch(n) for n in range(3, 9))]
    assert 2 not in pruned(live, a_view(epoch=2))
    pending = [an_epoch(1, "live"), an_epoch(2, "open"), *(an_epoch(n) for n in range(3, 9))]
    assert pruned(pending, a_view(epoch=1)) == [3, 4, 5, 6]


def test_that_the_job_ever_lived_is_not_forgotten():
    """Ranks hold 5, whose outcome was never written: 2 alone says that the job has lived."""
    records = [an_epoch(1, "live"), an_epoch(2, "live"), *(an_epoch(n) for n in range(3, 9))]
    assert pruned(records, a_view(epoch=5)) == [1, 3, 4, 6]


def test_layouts_that_a_directive_carries_stay():
    records = [*TEN[:-1], replace(an_epoch(10, "open", holds=(3,)))]
    assert 3 not in pruned(records, a_view(follows=10))


@pytest.mark.parametrize(
    "view",
    [
        None,
        AgentView(pod=POD.name, report=None),
        replace(a_view(epoch=10), unreachable_since_s=1.0),
    ],
    ids=["never asked", "never answered", "silent"],
)
def test_nothing_goes_while_an_agent_is_silent(view):
    assert pruned(TEN, view) == []


def test_the_newest_record_stays_even_if_none_is_to_be_kept():
    assert 10 not in pruned(TEN, a_view(), kept=0)


def test_a_record_stays_while_its_errors_count():
    failure = Failure(kind="device", sentence="out of memory", epoch=3, step=7, gpus=(("a", 0),))
    failed = replace(an_epoch(3), closed_s=90.0, failures=(failure,))
    assert pruned([*TEN[:2], failed, *TEN[3:]], a_view(epoch=10)) == [1, 2, 4, 5, 6, 7, 8]


def limited(backoff_limit):
    job = a_job()
    spec = job.spec.model_copy(update={"backoff_limit": backoff_limit})
    return job.model_copy(update={"spec": spec})


def sealed(epoch, outcome="aborted", resume=None):
    return replace(
        an_epoch(epoch, outcome), seal=Seal(members=(), store="s:1", resume=resume, sealed_s=0.0)
    )


@pytest.mark.parametrize("limit", [30, 60])
@pytest.mark.parametrize("failed", ["formed", "did not start"])
def test_attempts_that_count_for_the_limit_stay_until_it_is_reached(limit, failed):
    job, records = limited(limit), ()
    for epoch in range(1, limit + 2):
        assert beyond_backoff(job, records) == ""
        record = sealed(epoch)
        if failed == "did not start":
            failure = StartFailure("a", "image", "no image", 0)
            record = replace(an_epoch(epoch), closed_s=-1e6, start_failures=(failure,))
        gone = pruned((*records, record), a_view(), 20, job)
        records = tuple(row for row in (*records, record) if row.epoch not in gone)
    assert beyond_backoff(job, records).startswith(f"{limit + 1} attempts failed in a row")


def test_recoveries_to_the_same_step_count_and_what_came_before_them_does_not():
    here, there = Resume(step=7), Resume(step=5)
    records = (
        sealed(1, "live", there), *(sealed(n) for n in range(2, 5)),
        *(sealed(n, "live", here) for n in range(5, 9)), *(sealed(n) for n in range(9, 12)),
    )  # fmt: skip
    assert pruned(records, a_view(epoch=8), 1, limited(20)) == [1]
    assert pruned(records, a_view(epoch=8), 1, limited(3)) == [1, 2, 3, 4, 5, 6, 7]
    assert pruned(records, a_view(epoch=8), 1) == [1, 2, 3, 4, 5, 6, 7, 9, 10]
