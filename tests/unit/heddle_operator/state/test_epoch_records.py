"""Epoch records are written once; a contradiction changes nothing."""

from __future__ import annotations

import dataclasses

import pytest

from heddle_operator.apis.errors import ClusterConflict
from heddle_operator.state.actions import AdoptPlan, CloseEpoch, PruneEpoch, SealEpoch
from heddle_operator.state.epoch_record import Seal, suspended_s
from heddle_operator.state.epoch_records import EpochRecords
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job
from tests.fakes.planner import fake_plan

NODES = Composition((Node(name="a", gpu_type="demo-fast", gpus=1),))
ADOPT = AdoptPlan(
    epoch=1, plan=fake_plan(NODES, a_job().workload), reason="start", composition=NODES
)
SEAL = SealEpoch(1, Seal(members=(), store="store:1", resume=None, sealed_s=0.0))


def records(*actions):
    found = EpochRecords()
    for action in actions:
        found.write(action, 1.0)
    return found


@pytest.mark.parametrize(
    ("before", "action"),
    [
        ((ADOPT,), ADOPT),
        ((), SEAL),
        ((ADOPT, SEAL), SEAL),
        ((ADOPT, CloseEpoch(epoch=1, outcome="aborted")), SEAL),
        ((ADOPT, CloseEpoch(epoch=1, outcome="live")), CloseEpoch(epoch=1, outcome="aborted")),
        ((ADOPT, CloseEpoch(epoch=1, outcome="complete")), CloseEpoch(epoch=1, outcome="live")),
    ],
    ids=["adopt twice", "seal none", "seal twice", "seal aborted", "abort live", "live complete"],
)
def test_a_write_that_contradicts_the_record_is_a_conflict(before, action):
    found = records(*before)
    kept = found.all
    with pytest.raises(ClusterConflict):
        found.write(action, 2.0)
    assert found.all == kept


def test_what_a_job_was_suspended_is_known_though_older_records_are_gone():
    """Twice by a checkpoint, and once while it was about to start again."""
    found = records(ADOPT)
    suspended = CloseEpoch(epoch=1, outcome="suspended")
    while_it_starts = CloseEpoch(epoch=2, outcome="aborted", by_suspension=True)
    for action, now in (
        (suspended, 10.0), (dataclasses.replace(ADOPT, epoch=2), 15.0),
        (while_it_starts, 20.0), (dataclasses.replace(ADOPT, epoch=3), 22.0),
        (dataclasses.replace(suspended, epoch=3), 30.0),
    ):  # fmt: skip
        found.write(action, now)
    assert suspended_s(found.all, 33.0) == 5.0 + 2.0 + 3.0
    found.prune(PruneEpoch(2))
    assert suspended_s(found.all, 33.0) == 10.0
    found.prune(PruneEpoch(1))
    assert suspended_s(found.all, 33.0) == 10.0


def test_of_records_of_an_earlier_version_each_pause_counts():
    record = dataclasses.replace(records(ADOPT).all[0], suspended_s=None)
    old = dataclasses.replace(record, outcome="suspended", closed_s=10.0)
    new = dataclasses.replace(record, epoch=2, adopted_s=17.0)
    assert suspended_s((old, new), 100.0) == 7.0


def test_an_epoch_number_is_never_used_again():
    found = records(ADOPT, CloseEpoch(epoch=1, outcome="aborted"))
    with pytest.raises(ClusterConflict, match="epoch 1 was adopted already"):
        found.write(ADOPT, 2.0)


def test_ranks_that_hold_an_aborted_epoch_prove_it_live():
    assert (
        records(ADOPT, CloseEpoch(epoch=1, outcome="aborted"), CloseEpoch(epoch=1, outcome="live"))
        .all[0]
        .outcome
        == "live"
    )


def test_closing_again_alike_keeps_the_first_time():
    found = records(ADOPT, CloseEpoch(epoch=1, outcome="live"))
    found.write(CloseEpoch(epoch=1, outcome="live"), 9.0)
    assert found.all[0].closed_s == 1.0


def test_the_newest_record_cannot_be_pruned_so_that_its_number_never_comes_again():
    found = records(
        ADOPT, CloseEpoch(epoch=1, outcome="aborted"), dataclasses.replace(ADOPT, epoch=2)
    )
    with pytest.raises(ClusterConflict, match="epoch 2 is the newest"):
        found.prune(PruneEpoch(2))
    found.prune(PruneEpoch(1))
    found.prune(PruneEpoch(1))
    assert [record.epoch for record in found.all] == [2]
    with pytest.raises(ClusterConflict, match="the newest is 2"):
        found.write(ADOPT, 1.0)
