"""After a lost race each job waits for its turn, which is its own and always the same."""

from __future__ import annotations

from dataclasses import replace

from heddle_operator.rules.gang import TURN_LIMIT_S, TURN_S, lost_races, turn_left_s
from heddle_operator.state.epoch_record import StartFailure
from heddle_operator.state.snapshot import Observed, ObservedPod
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job, a_record, view_of
from tests.fakes.planner import fake_plan

NODES = Composition(
    (Node(name="a", gpu_type="demo-fast", gpus=1), Node(name="b", gpu_type="demo-fast", gpus=1))
)
PLAN = fake_plan(NODES, a_job().workload)
LOST = a_record(PLAN, NODES, outcome="aborted", closed_s=100.0)
FAILED = replace(LOST, start_failures=(StartFailure("a", "image", "no image", 1),))


def named(uid):
    job = a_job()
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": uid})})


def turn(job, *epochs, pods=()):
    return turn_left_s(view_of(job, Observed(epochs=epochs, pods=pods), 100.0), PLAN)


def test_a_first_start_waits_for_nobody():
    assert turn(a_job()) == 0.0


def test_turns_differ_by_job_and_are_the_same_for_every_operator():
    turns = [turn(named(f"job-{number}"), LOST) for number in range(50)]
    assert all(0 <= wait < TURN_S for wait in turns)
    assert len(set(turns)) == 50
    assert turn(named("job-0"), LOST) == turns[0]


def test_turns_spread_further_with_each_lost_race_up_to_a_limit():
    many = tuple(replace(LOST, epoch=number) for number in range(1, 12))
    widest = max(turn(named(f"job-{number}"), *many) for number in range(50))
    assert TURN_LIMIT_S / 2 < widest < TURN_LIMIT_S


def test_who_has_all_pods_that_the_plan_needs_waits_no_longer():
    pods = tuple(
        ObservedPod(name=f"p-{n}", node=n, ordinal=0, gpus=1, phase="running") for n in "ab"
    )
    assert turn(a_job(), LOST, pods=pods) == 0.0
    assert turn(a_job(), LOST, pods=pods[:1]) > 0.0


def test_a_node_that_failed_is_no_lost_race():
    assert lost_races((LOST, FAILED)) == []
    assert lost_races((FAILED, LOST)) == [LOST]
