"""What survivors hold together, over layouts of several epochs."""

from __future__ import annotations

from heddle_operator.epochs.members import members_of
from heddle_operator.rules.coverage import Survivors
from heddle_operator.state.epoch_record import EpochRecord, Seal
from heddle_operator.state.situation import Holder
from heddle_operator.state.snapshot import Observed, ObservedPod
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import a_job
from tests.fakes.planner import MODEL, fake_plan
from worker.contract import RankReport

PODS = tuple(
    ObservedPod(name=f"tiny-{n}-0", node=n, ordinal=0, gpus=1, phase="running") for n in "ab"
)


def record(epoch, names):
    nodes = Composition(tuple(Node(name=name, gpu_type="demo-fast", gpus=1) for name in names))
    plan = fake_plan(nodes, a_job().workload, as_pipeline=True)
    members = members_of(plan, Observed(pods=PODS), ())
    return EpochRecord(
        epoch=epoch,
        plan=plan,
        reason="join",
        composition=nodes,
        adopted_s=0.0,
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
    assert lost(holder("a", 1)).startswith("the last holder of 4.")
    assert lost(holder("b", 1)).startswith("the last holder of 0.weight")


def test_layouts_of_two_epochs_add_up():
    assert lost(holder("a", 1), holder("b", 2)) == ""
    assert lost(holder("b", 2)) == ""


def test_a_layout_that_was_voted_for_counts_as_held():
    assert lost(holder("b", 1, also=2)) == ""


def test_nobody_holds_nothing():
    assert lost() == "no rank holds any state"
