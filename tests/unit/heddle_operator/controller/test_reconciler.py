"""The loop carries out what is decided, and nothing else."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from heddle_operator.apis.errors import ClusterConflict, ClusterUnavailable
from heddle_operator.controller import reconciler
from heddle_operator.controller.arbiter import PriorityArbiter
from heddle_operator.controller.reconciler import (
    Reconciler,
    batches,
    nothing_is_left,
    with_allowance,
)
from heddle_operator.epochs.decide import decide
from heddle_operator.ports.emitted_events import BURST
from heddle_operator.state.actions import (
    AdoptPlan,
    CloseEpoch,
    CreatePod,
    DeletePod,
    EndPod,
    PruneEpoch,
    RecordEvent,
)
from heddle_operator.state.decision import Decision
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import situation
from tests.fakes.operator import a_cluster, a_job, running, view_of


class Effects:
    """The fake cluster's agents and planner, as the loop knows them."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.replies = cluster.replies
        self.worths = cluster.worths
        self.weigh = cluster.weigh

    @property
    def views(self):
        self.cluster.snapshot()
        return self.cluster.views

    @property
    def repriced_s(self):
        return None

    def follow_wire(self, wire, now):
        return False

    @property
    def in_flight(self):
        return frozenset(self.cluster.asked)

    def watch(self, pods):
        pass

    def send(self, pod, directive):
        agent = self.cluster.agents.get(pod)
        if agent is not None:
            self.cluster._put(pod, directive)

    def end(self, pod):
        self.cluster.do(EndPod(pod))

    def request(self, action):
        self.cluster.do(action)


class Clock:
    """A trigger that lets the cluster go on instead of waiting."""

    def __init__(self, cluster):
        self.cluster = cluster

    def set(self):
        pass

    async def wait(self, timeout_s):
        self.cluster.tick()
        return True


def a_loop(steps=40, **hooks):
    job = a_job()
    spec = job.spec.model_copy(update={"steps": steps})
    cluster = a_cluster(job, "a", "b")
    cluster.now = time.monotonic()
    effects = Effects(cluster)
    return cluster, Reconciler(
        job.model_copy(update={"spec": spec}),
        cluster,
        effects,
        effects,
        Clock(cluster),
        Settings(),
        **hooks,
    )


def test_a_job_runs_to_its_end_and_leaves_ended_pods():
    decisions = []
    cluster, loop = a_loop(on_decision=lambda decision, observed, now: decisions.append(decision))
    assert asyncio.run(asyncio.wait_for(loop.run(), 20)).phase == "Complete"
    assert {name: pod.phase for name, pod in cluster.pods.items()} == {
        "tiny-a-0": "ended",
        "tiny-b-0": "ended",
    }
    phases = [decision.phase for decision in decisions]
    assert [p for i, p in enumerate(phases) if p not in phases[:i]] == [
        "Planning",
        "Preparing",
        "Switching",
        "Running",
        "Saving",
        "Complete",
    ]


def test_one_pass_reads_its_picture_once(monkeypatch):
    read = []
    monkeypatch.setattr(
        "heddle_operator.state.situation.situation",
        lambda *row: read.append(row) or situation(*row),
    )
    _, loop = a_loop(arbiter=PriorityArbiter())
    decision = asyncio.run(loop.reconcile())
    assert len(read) == 1
    assert decision.phase == "Planning"
    assert loop.view is not None
    assert loop.view.situation == situation(*read[0])


def test_a_lost_race_is_no_error():
    cluster, loop = a_loop()

    async def race():
        while True:
            observed = await loop.observe()
            decision = await loop.reconcile()
            adopts = [a for a in decision.actions if isinstance(a, AdoptPlan)]
            if adopts:
                await loop._apply(adopts[0])
                return len(observed.epochs), len(cluster.records.all)
            cluster.tick()

    assert asyncio.run(race()) == (0, 1)


def test_pods_of_one_epoch_are_created_at_once():
    """Each creation waits until the other one has begun: one after the other would never end."""
    cluster, loop = a_loop()
    begun, both = [], asyncio.Event()

    async def apply(action):
        if isinstance(action, CreatePod):
            begun.append(action.name)
            if len(begun) == 2:
                both.set()
            await both.wait()
        cluster.do(action)

    cluster.apply = apply
    assert asyncio.run(asyncio.wait_for(loop.run(), 20)).phase == "Complete"
    assert begun == ["tiny-a-0", "tiny-b-0"]


def test_what_could_not_be_done_is_tried_again_and_hinders_nothing_else():
    cluster, loop = a_loop()
    refusals = ["tiny-a-0", "tiny-a-0"]

    async def apply(action):
        if isinstance(action, CreatePod) and action.name in refusals:
            refusals.remove(action.name)
            raise ClusterUnavailable("the API server does not answer")
        cluster.do(action)

    cluster.apply = apply
    assert asyncio.run(asyncio.wait_for(loop.run(), 20)).phase == "Complete"
    assert refusals == []
    assert cluster.created[0] == "tiny-b-0"


@pytest.mark.parametrize(("again_s", "looks_s"), [(None, reconciler.RETRY_S), (30.0, 30.0)])
def test_what_is_not_done_is_tried_when_the_cluster_says(monkeypatch, again_s, looks_s):
    cluster, loop = a_loop()

    async def apply(action):
        raise ClusterUnavailable("a policy forbids it", again_s=again_s)

    cluster.apply = apply
    closing = CloseEpoch(epoch=1, outcome="live")
    decision = Decision(actions=(closing,), phase="Planning", message="", look_again_s=60.0)
    monkeypatch.setattr(reconciler, "decide", lambda view: decision)
    assert asyncio.run(loop.reconcile()).look_again_s == looks_s
    assert loop.done == ()


def test_few_events_of_one_reason_are_told_however_many_a_decision_holds(monkeypatch):
    told = []
    _, loop = a_loop(on_event=told.append)
    many = tuple(RecordEvent(f"kept-{n}", "PlanKept", "it is kept") for n in range(3 * BURST))

    def decide_more(view):
        decision = decide(view)
        return replace(decision, actions=(*decision.actions, *many))

    monkeypatch.setattr(reconciler, "decide", decide_more)
    asyncio.run(loop.reconcile())
    assert len([event for event in told if event.reason == "PlanKept"]) == BURST
    assert not loop.emitted.add(RecordEvent("another", "PlanKept", "it is kept"), time.monotonic())


@pytest.mark.parametrize("error", [ClusterUnavailable, ClusterConflict])
def test_no_event_tells_of_a_record_that_was_not_written(error):
    told = []
    cluster, loop = a_loop(on_event=lambda event: told.append(event.reason))
    refusals = [AdoptPlan, CloseEpoch]

    async def apply(action):
        if type(action) in refusals:
            refusals.remove(type(action))
            raise error("the record is not written")
        cluster.do(action)

    async def run():
        while not refused_with(CloseEpoch):
            await loop.reconcile()
            assert ("PlanSelected" in told) == bool(cluster.records.all)
            cluster.tick()
        assert not [action for action in loop.done if isinstance(action, CloseEpoch)]
        await loop.reconcile()
        assert [action for action in loop.done if isinstance(action, CloseEpoch)]

    def refused_with(kind):
        return kind not in refusals

    cluster.apply = apply
    asyncio.run(asyncio.wait_for(run(), 20))
    assert told.count("PlanSelected") == 1


A, B = CreatePod("a", "a", 0, 1), CreatePod("b", "b", 0, 1)
OLD, OLDER = DeletePod("old", "test"), DeletePod("older", "test")


def test_pods_are_created_at_once_but_after_what_was_decided_before():
    assert batches([OLD, OLDER, A, B]) == ((OLD, OLDER), (A, B))
    assert batches([A, OLD, B]) == ((A,), (OLD,), (B,))


def test_the_records_of_epochs_are_written_one_after_another():
    first, second = CloseEpoch(epoch=1, outcome="aborted"), CloseEpoch(epoch=2, outcome="live")
    assert batches([first, second]) == ((first,), (second,))
    assert batches([PruneEpoch(1), PruneEpoch(2)]) == ((PruneEpoch(1), PruneEpoch(2)),)


def test_no_action_gets_lost_or_moves():
    actions = [RecordEvent("k", "R", "m"), A, B, CloseEpoch(epoch=1, outcome="live"), OLD]
    assert [action for batch in batches(actions) for action in batch] == actions
    assert batches([]) == ()


class Reported(Effects):
    """Agents whose ranks use a wire, and a planner that prices by one."""

    def __init__(self, cluster, wire):
        super().__init__(cluster)
        self.said, self.priced = wire, ["nccl"]

    @property
    def views(self):
        told = {"wire": self.said}
        return {
            pod: replace(view, report=view.report and view.report.model_copy(update=told))
            for pod, view in super().views.items()
        }

    def follow_wire(self, wire, now):
        if wire == self.priced[-1]:
            return False
        self.priced.append(wire)
        return True


@pytest.mark.parametrize(
    ("said", "priced"), [("staged", "staged"), ("nccl", "nccl"), ("gloo", "nccl"), (None, "nccl")]
)
def test_plans_are_priced_by_the_wire_that_pods_report(said, priced):
    """Of a job with `device: Auto` nobody knows it before."""
    job = a_job()
    cluster = a_cluster(job, "a", "b")
    cluster.now = time.monotonic()
    effects = Reported(cluster, said)
    loop = Reconciler(job, cluster, effects, effects, Clock(cluster), Settings())

    async def until_trained():
        while (await loop.reconcile()).phase != "Running":
            cluster.tick()

    asyncio.run(asyncio.wait_for(until_trained(), 20))
    assert loop.job.workload.wire == priced
    assert effects.priced == ["nccl", *([priced] if priced != "nccl" else [])]


@pytest.mark.parametrize("trains", [False, True])
def test_gpu_types_are_weighed_as_urgently_as_what_waits_for_them(trains):
    arbiter, asked, views = PriorityArbiter(), [], {}
    for cluster in (running("a").cluster, a_cluster(a_job(), "a")):
        cluster.add_node("b", "demo-slow", 1)
        does = bool(cluster.pods)
        named = a_job().metadata.model_copy(update={"uid": str(does)})
        job = a_job().model_copy(update={"metadata": named})
        views[does] = view_of(job, cluster.snapshot(), cluster.now)
        with_allowance(arbiter, views[does], lambda *_: None)  # jobs weigh only beside others
    with_allowance(arbiter, views[trains], lambda _, reason: asked.append(reason))
    assert asked == ["join" if trains else "start"]


def test_a_job_that_ended_is_looked_at_until_no_sidecar_of_it_runs_on():
    seen = running("a").cluster.snapshot()
    decision = Decision(actions=(), phase="Complete", message="")
    for lingers in (True, False):
        pods = tuple(replace(pod, phase="ended", lingers=lingers) for pod in seen.pods)
        assert nothing_is_left(decision, replace(seen, pods=pods)) is not lingers
