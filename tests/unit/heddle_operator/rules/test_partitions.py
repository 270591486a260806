"""Nodes that cannot reach each other: whom the next attempt leaves out, who comes back too late."""

from __future__ import annotations

from dataclasses import replace

from heddle_operator.epochs.decide import decide
from heddle_operator.rules.partitions import needed_holders, without_partitioned
from heddle_operator.state.actions import AdoptPlan, DeletePod, RequestPlan
from heddle_operator.state.epoch_record import Failure
from heddle_operator.state.settings import Settings
from heddle_operator.state.situation import situation
from planner.cluster.composition import Composition, Node
from tests.fakes.operator import FakeOperator, a_cluster, a_job, view_of

BOTH = Composition(
    (Node(name="a", gpu_type="demo-fast", gpus=1), Node(name="b", gpu_type="demo-fast", gpus=1))
)


def halted(*nodes, attempts=0, as_pipeline=False):
    """A job whose ranks have lost each other, after so many recoveries that could not form."""
    job = a_job()
    operator = FakeOperator(job, a_cluster(job, *nodes, as_pipeline=as_pipeline))
    operator.settle()
    observed, now = operator.cluster.snapshot(), operator.cluster.now
    agents = {}
    for name, view in observed.agents.items():
        ranks = tuple(
            rank.model_copy(update={"phase": "halted", "error": "lost a peer"})
            for rank in view.report.ranks
        )
        agents[name] = replace(view, report=view.report.model_copy(update={"ranks": ranks}))
    live = observed.epochs[-1]
    tried = tuple(
        replace(live, epoch=live.epoch + 1 + i, reason="loss", outcome="aborted", closed_s=now)
        for i in range(attempts)
    )
    return job, replace(observed, agents=agents, epochs=(*observed.epochs, *tried)), now


def left(attempts, **options):
    job, observed, now = halted("a", "b", attempts=attempts, **options)
    where = situation(observed, now, Settings())
    return {
        node.name
        for node in without_partitioned(view_of(job, observed, 0.0, situation=where), BOTH).nodes
    }


def test_each_attempt_leaves_out_another_node_and_every_round_tries_all():
    assert [left(attempts) for attempts in range(5)] == [
        {"a", "b"}, {"b"}, {"a"}, {"a", "b"}, {"b"},
    ]  # fmt: skip


def test_a_node_without_which_the_state_is_not_whole_is_never_left_out():
    assert [left(attempts, as_pipeline=True) for attempts in range(3)] == [{"a", "b"}] * 3


def test_an_attempt_that_failed_with_its_node_is_no_separation():
    job, observed, now = halted("a", "b", attempts=1)
    gone = replace(observed, pods=observed.pods[1:])
    where = situation(gone, now, Settings())
    assert without_partitioned(view_of(job, gone, 0.0, situation=where), BOTH) == BOTH


def test_who_was_left_out_takes_no_part_in_the_recovery():
    job, observed, now = halted("a", "b", attempts=1)
    where = situation(observed, now, Settings())
    record = replace(
        observed.epochs[-1], composition=BOTH.without(["a"]), outcome="open", seal=None
    )
    assert [
        h.node for h in needed_holders(view_of(job, observed, 0.0, situation=where), record)
    ] == ["b"]
    join = replace(record, reason="join")
    assert [h.node for h in needed_holders(view_of(job, observed, 0.0, situation=where), join)] == [
        "a",
        "b",
    ]


def test_the_job_rolls_forward_on_one_side_of_the_cut():
    job, observed, now = halted("a", "b", attempts=1)
    asked = decide(view_of(job, observed, now + 100.0))
    (request,) = [action for action in asked.actions if isinstance(action, RequestPlan)]
    assert [node.name for node in request.composition.nodes] == ["b"]


def test_a_pod_that_comes_back_with_the_state_of_a_past_epoch_is_no_holder_and_goes():
    job, observed, now = halted("a", "b")
    live = replace(observed.epochs[-1], epoch=2, composition=BOTH.without(["a"]))
    seal = replace(live.seal, members=tuple(m for m in live.seal.members if m.node == "b"))
    view = observed.agents["tiny-b-0"]
    ranks = tuple(
        rank.model_copy(update={"phase": "training", "epoch": 2}) for rank in view.report.ranks
    )
    present = replace(view, report=view.report.model_copy(update={"ranks": ranks, "epoch": 2}))
    observed = replace(
        observed,
        epochs=(*observed.epochs, replace(live, seal=seal)),
        agents={**observed.agents, "tiny-b-0": present},
    )
    where = situation(observed, now, Settings())
    assert [holder.node for holder in where.holders] == ["b"]
    assert [holder.node for holder in where.outdated] == ["a"]
    decision = decide(view_of(job, observed, now))
    assert DeletePod("tiny-a-0", "its ranks hold the state of a past epoch") in decision.actions
    assert not [action for action in decision.actions if isinstance(action, AdoptPlan)]


def test_an_attempt_whose_error_is_known_is_no_separation():
    job, observed, now = halted("a", "b", attempts=1)
    failure = Failure(kind="device", sentence="out of memory", epoch=2, step=7, gpus=(("a", 0),))
    failed = replace(observed.epochs[-1], failures=(failure,))
    observed = replace(observed, epochs=(*observed.epochs[:-1], failed))
    where = situation(observed, now, Settings())
    assert without_partitioned(view_of(job, observed, 0.0, situation=where), BOTH) == BOTH
