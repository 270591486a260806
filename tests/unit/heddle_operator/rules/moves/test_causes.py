"""A move that is forced says by what: a word for programs, and a sentence with node or limit."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from heddle_operator.rules.moves.causes import loses_gpus
from heddle_operator.state.actions import AdoptPlan, RecordEvent
from heddle_operator.state.reasons import MoveKind
from tests.builders import nodes, on_one_node, template
from tests.fakes.operator import FakeOperator, a_cluster, a_job, running


def moved(operator):
    """Kind and sentence of the next plan that is adopted, and what its Event says."""
    decision = operator.run(lambda d: any(isinstance(a, AdoptPlan) for a in d.actions))
    (adopt,) = (a for a in decision.actions if isinstance(a, AdoptPlan))
    (event,) = (
        a for a in decision.actions if isinstance(a, RecordEvent) and a.reason == "PlanSelected"
    )
    assert operator.cluster.records.all[-1].moved_by == adopt.moved_by
    return adopt.moved_by, event.message.removeprefix(f"epoch {adopt.epoch} ({adopt.reason}): ")


def limit(operator, **elastic):
    spec = operator.job.spec
    changed = spec.elastic.model_copy(update=elastic)
    operator.job = operator.job.model_copy(
        update={"spec": spec.model_copy(update={"elastic": changed})}
    )


def allowing(operator, *types):
    return operator.job.spec.elastic.gpu_types.model_copy(update={"allow": types})


def test_a_lowered_limit():
    operator = running("a", "b", "c")
    limit(operator, max_gpus=2)
    assert moved(operator) == (
        "MaxGPUs",
        "the job moves: maxGPUs is 2, and the plan uses 3 GPUs",
    )


def test_a_node_whose_label_tells_another_type():
    operator = running("a", "b")
    nodes = operator.cluster.nodes
    nodes["b"] = replace(nodes["b"], gpu_type="demo-slow")
    assert moved(operator) == (
        "GPUTypeChanged",
        "the job moves: node b has the GPU type demo-slow now, and the plan was for demo-fast",
    )


def test_a_node_without_its_label_is_left_and_used_again_once_the_label_is_back():
    operator = running("a", "b")
    cluster, node = operator.cluster, operator.cluster.nodes["b"]
    cluster.nodes["b"] = replace(node, gpu_type="")
    limit(operator, gpu_types=allowing(operator, "demo-fast"))
    moved(operator)
    operator.settle()
    assert cluster.records.all[-1].plan.nodes == ("a",)
    cluster.nodes["b"] = node
    operator.settle()
    assert [r.outcome for r in cluster.records.all] == ["live"] * 3
    assert cluster.records.all[-1].plan.nodes == ("a", "b")


def test_a_type_that_the_job_may_not_use_any_more():
    operator = running("a", "b")
    nodes = operator.cluster.nodes
    nodes["b"] = replace(nodes["b"], gpu_type="demo-slow")
    limit(operator, gpu_types=allowing(operator, "demo-fast"))
    assert moved(operator) == (
        "GPUTypeNotAllowed",
        "the job moves: node b has the GPU type demo-slow, and gpuTypes.allow lacks that",
    )


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("is of GPU type x, for which the model has no profile", "NodeUnusable"),
        ("", "NodeGone"),
    ],
)
def test_a_node_that_is_no_node_of_the_job_any_more(said, cause):
    """Its label names a type without a profile, or the node object is gone while its pod runs."""
    operator = running("a", "b")
    seen = operator.cluster.snapshot

    def snapshot():
        found = seen()
        kept = tuple(node for node in found.nodes if node.name != "b")
        return replace(found, nodes=kept, unusable=(("b", said),) if said else ())

    operator.cluster.snapshot = snapshot
    assert moved(operator) == (cause, f"the job moves: node b {said or 'is gone'}")


def test_fewer_gpus_of_a_node():
    job = a_job()
    cluster = a_cluster(job, "a")
    cluster.add_node("b", gpus=2)
    operator = FakeOperator(job, cluster)
    operator.settle()
    seen = cluster.snapshot
    fewer = replace(cluster.nodes["b"], gpus=1)
    cluster.snapshot = lambda: replace(seen(), nodes=(cluster.nodes["a"], fewer))
    assert moved(operator) == (
        "FewerGPUs",
        "the job moves: node b has 1 GPU for the job, the plan uses 2",
    )


def test_a_node_that_leaves():
    operator = running("a", "b")
    operator.cluster.drain("b")
    assert moved(operator) == ("NodeLeaving", "the job moves: node b got a notice")


def test_lost_ranks():
    operator = running("a", "b")
    operator.cluster.kill_node("b")
    kind, _ = moved(operator)
    assert kind == "RanksLost"


def test_a_job_that_starts_or_grows_is_forced_by_nothing():
    operator = running("a")
    assert operator.cluster.records.all[-1].moved_by is None
    operator.cluster.add_node("b")
    kind, _ = moved(operator)
    assert kind is None


def without_price(operator, plan):
    """The planner finds that a plan has no price on the nodes that are there from now on."""
    cluster, answer = operator.cluster, operator.cluster.answer_plans

    def answer_plans():
        answer()
        for key, reply in cluster.replies.items():
            if key.current == plan.digest:
                cluster.replies[key] = replace(reply, current_samples_s=None, current_problem="why")

    cluster.answer_plans = answer_plans


@pytest.mark.parametrize("mode", ["Auto", "Recommend"])
def test_a_plan_without_a_price_is_left_at_once_where_the_mode_lets_the_job_move(mode):
    operator = running("a", mode=mode, minGainPercent=90, cooldownSeconds=600)
    operator.cluster.add_node("b")
    operator.settle()
    before = operator.cluster.records.all
    without_price(operator, before[-1].plan)
    operator.cluster.add_node("c")
    if mode == "Recommend":
        assert operator.settle().reason == "PlanRecommended"
        assert "its plan has no price on these nodes: why" in operator.decision.message
        assert operator.cluster.records.all == before
        return
    expected = "the job moves: its plan has no price on these nodes: why"
    assert moved(operator) == ("PlanUnpriced", expected)
    operator.settle()
    kinds = [record.moved_by for record in operator.cluster.records.all]
    assert kinds == [None, None, "PlanUnpriced"]


def test_every_kind_is_one_word():
    assert all(kind.isidentifier() and kind[0].isupper() for kind in get_args(MoveKind))


@pytest.mark.parametrize(
    ("there", "loses"),
    [("fast-0:2", False), ("fast-0:3", False), ("fast-0:1", True), ("slow-0:2", True)],
)
def test_a_plan_loses_gpus_that_are_too_few_or_of_another_type(there, loses):
    plan = on_one_node(template("1x4 1x2"))
    assert loses_gpus(plan, nodes(there)) is loses
