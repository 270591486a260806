"""Members: new ranks in rank order, then those that leave; pods cover what the plan uses."""

from __future__ import annotations

import dataclasses
import re

import pytest

from heddle_operator.epochs.members import (
    MAX_HOST_NAME,
    further_pod_name,
    members_of,
    missing_pods,
    pod_name,
    seats_on_pods,
)
from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.situation import Holder
from heddle_operator.state.snapshot import Observed, ObservedPod
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan
from worker.contract import RankReport

NODES = Composition(
    (Node(name="a", gpu_type="demo-fast", gpus=2), Node(name="b", gpu_type="demo-fast", gpus=1))
)
PLAN = fake_plan(NODES, a_job().workload)
RECORD = EpochRecord(epoch=1, plan=PLAN, reason="start", composition=NODES, adopted_s=0.0)


def pod(name, node, gpus, ordinal=0):
    return ObservedPod(name=name, node=node, ordinal=ordinal, gpus=gpus, phase="running")


def rank(slot, epoch, also=None):
    return RankReport(
        slot=slot, pid=1, started_s=0.0, phase="halted", epoch=epoch, also_epoch=also
    )  # fmt: skip


def test_a_pod_takes_the_gpus_that_its_plan_uses_and_leaves_the_others_to_others():
    larger = Composition(
        (Node(name="a", gpu_type="demo-fast", gpus=8), Node(name="b", gpu_type="demo-fast", gpus=4))
    )
    wanted = missing_pods(a_job(), dataclasses.replace(RECORD, composition=larger), Observed())
    assert [(p.name, p.gpus) for p in wanted] == [("tiny-a-0", 2), ("tiny-b-0", 1)]


def test_a_node_that_grew_gets_a_second_pod_for_the_rest():
    observed = Observed(pods=(pod("tiny-a-0", "a", 1), pod("tiny-b-0", "b", 1)))
    (wanted,) = missing_pods(a_job(), RECORD, observed)
    assert (wanted.name, wanted.ordinal, wanted.gpus) == ("tiny-a-1", 1, 1)


def test_slots_count_through_the_pods_of_a_node():
    pods = (pod("tiny-a-0", "a", 1), pod("tiny-a-1", "a", 1, 1), pod("tiny-b-0", "b", 1))
    seats = seats_on_pods(PLAN, Observed(pods=pods))
    assert seats == (("tiny-a-0", 0, "a", 0), ("tiny-a-1", 0, "a", 1), ("tiny-b-0", 0, "b", 0))


def test_members_are_unknown_while_a_pod_is_missing():
    assert members_of(PLAN, Observed(pods=(pod("tiny-a-0", "a", 2),)), ()) is None


def test_holders_without_a_seat_come_last_and_keep_both_their_layouts():
    pods = (pod("tiny-a-0", "a", 2), pod("tiny-b-0", "b", 1), pod("tiny-c-0", "c", 1))
    holders = (Holder("tiny-b-0", "b", rank(0, 3)), Holder("tiny-c-0", "c", rank(0, 3, also=4)))
    members = members_of(PLAN, Observed(pods=pods), holders)
    assert [m.rank for m in members] == [0, 1, 2, None]
    assert [m.holds for m in members] == [None, None, 3, 3]
    assert members[-1].also_holds == 4


@pytest.mark.parametrize(
    "node",
    ["a", "ip-10-0-128-200.eu-central-1.compute.internal", "n" * 253, "x" * 20 + ".-" * 30],
    ids=["short", "of a cloud", "longest", "with dots where it is cut"],
)
@pytest.mark.parametrize("job", ["j", "j" * 42, "j" * 43, "j" * 63, "j" * 23 + "-" * 39 + "j"])
def test_the_name_of_a_pod_is_a_host_name_whatever_job_and_node_are_called(job, node):
    names = {pod_name(job, node, ordinal) for ordinal in (0, 1, 11)}
    assert len(names) == 3
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name) for name in names)
    assert all(len(name) <= 63 for name in names)


@pytest.mark.parametrize("letters", [42, 43, 63])
def test_nodes_whose_names_are_cut_alike_have_pods_of_different_names(letters):
    job = "j" * letters
    assert pod_name(job, "n" * 60 + "a", 0) != pod_name(job, "n" * 60 + "b", 0)


def test_jobs_whose_names_are_cut_alike_have_pods_of_different_names():
    assert pod_name("j" * 62 + "a", "n", 0) != pod_name("j" * 62 + "b", "n", 0)


def test_pods_of_a_job_with_a_short_name_keep_the_names_that_they_had():
    """A job that runs has them on record, whichever version made them."""
    assert pod_name("j" * 42, "n" * 18, 0) == f"{'j' * 42}-{'n' * 18}-0"
    assert pod_name("j" * 42, "n" * 60, 0) == f"{'j' * 42}-{'n' * 9}-0cbb8dcc-0"


def test_two_jobs_whose_pods_need_one_name_have_further_ones_that_differ():
    name = pod_name("exp", "gpu-0", 0)
    assert name == pod_name("exp-gpu", "0", 0)
    further = {further_pod_name(name, uid) for uid in ("one", "two")}
    assert len(further) == 2
    longest = {further_pod_name(f"{'n' * (MAX_HOST_NAME - 2)}-{i}", "one") for i in (0, 1)}
    assert len(longest) == 2
    for each in further | longest:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", each)
        assert len(each) <= MAX_HOST_NAME
