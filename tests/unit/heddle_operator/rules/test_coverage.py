"""What survivors hold together, over layouts of several epochs."""

from __future__ import annotations

from dataclasses import replace

from heddle_operator.epochs.members import members_of
from heddle_operator.rules.coverage import Survivors
from heddle_operator.state.epoch_record import Seal
from heddle_operator.state.situation import Holder
from heddle_operator.state.snapshot import Observed, ObservedPod
from planner.cluster.composition import Composition, Node
from planner.plans.plan import PlacedStage, Plan
from tests.fakes.operator import a_job, a_record
from tests.fakes.planner import MODEL, fake_plan
from worker.contract import RankReport

PODS = tuple(
    ObservedPod(name=f"tiny-{n}-0", node=n, ordinal=0, gpus=1, phase="running") for n in "ab"
)


def record(epoch, names):
    nodes = Composition(tuple(Node(name=name, gpu_type="demo-fast", gpus=1) for name in names))
    plan = fake_plan(nodes, a_job().workload, as_pipeline=True)
    members = members_of(plan, Observed(pods=PODS), ())
    return a_record(
        plan,
        nodes,
        epoch,
        reason="join",
        seal=Seal(members=members, store="s:1", resume=None, sealed_s=0.0),
    )


OBSERVED = Observed(pods=PODS, epochs=(record(1, "ab"), record(2, "b")))


def holder(name, epoch, also=None):
    rank = RankReport(slot=0, pid=1, started_s=0, phase="halted", epoch=epoch, also_epoch=also)
    return Holder(f"tiny-{name}-0", name, rank)


def lost(*holders):
    return Survivors.of(MODEL, holders, OBSERVED).lost_piece()


def test_two_halves_are_whole_and_one_is_not():
    assert lost(holder("a", 1), holder("b", 1)) == ""
    assert lost(holder("a", 1)).startswith("the last owner of 4.")
    assert lost(holder("b", 1)).startswith("the last owner of 0.weight")


def test_with_zero_one_replica_is_not_whole():
    nodes = Composition(tuple(Node(name=name, gpu_type="demo-fast", gpus=1) for name in "ab"))
    (template,) = fake_plan(nodes, a_job().workload, as_pipeline=False).templates[:1]
    spots = tuple(PlacedStage(0, replica, 0, "ab"[replica], (0,)) for replica in range(2))
    both = Plan((replace(template, micro_batches=(1, 1)),), spots)
    for zero, sentence in ((0, ""), (1, "the last owner of ")):
        epoch = replace(record(1, "ab"), plan=both.with_zero(zero))
        members = members_of(epoch.plan, Observed(pods=PODS), ())
        epoch = replace(epoch, seal=replace(epoch.seal, members=members))
        observed = Observed(pods=PODS, epochs=(epoch,))
        lost_piece = Survivors.of(MODEL, [holder("a", 1)], observed).lost_piece()
        assert lost_piece.startswith(sentence)
        assert bool(lost_piece) == bool(zero)
        assert not Survivors.of(MODEL, [holder("a", 1), holder("b", 1)], observed).lost_piece()


def test_layouts_of_two_epochs_add_up():
    assert lost(holder("a", 1), holder("b", 2)) == ""
    assert lost(holder("b", 2)) == ""


def test_a_layout_that_was_voted_for_counts_as_held():
    assert lost(holder("b", 1, also=2)) == ""


def test_nobody_holds_nothing():
    assert lost() == "no rank holds any state"
