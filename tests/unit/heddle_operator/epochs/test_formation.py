"""What keeps a sealed epoch from being reached is said, and the old plan trains on meanwhile."""

from __future__ import annotations

import dataclasses

from heddle_operator.epochs.formation import formation_fault
from heddle_operator.state.actions import SendDirective
from tests.fakes.operator import FakeOperator, a_cluster, a_job, running, view_of
from tests.unit.heddle_operator.epochs.gathered import LIMITS, gathering, look
from worker.contract import RankExit


def test_an_agent_that_refuses_the_directive_is_quoted():
    operator = gathering("a")
    while operator.cluster.records.all[-1].seal is None:
        operator.reconcile()
        operator.cluster.tick()
    agents = dict(operator.cluster.snapshot().agents)
    refusal = "output '/w' cannot be written: permission denied"
    agents["tiny-b-0"] = dataclasses.replace(agents["tiny-b-0"], refusal=refusal)
    decision = look(operator, agents=agents)
    assert (decision.phase, decision.message) == (
        "Preparing",
        f"pod tiny-b-0 refuses: {refusal}",
    )


def test_a_join_that_gathers_gives_way_to_an_evicted_pod_of_the_live_plan():
    operator = FakeOperator(a_job(), a_cluster(a_job(), "a", "b"))
    operator.settle()
    cluster = operator.cluster
    cluster.pulls_until_s["c"] = cluster.now + 60.0
    cluster.add_node("c")
    operator.run(lambda d: d.message == "epoch 2 waits for pod tiny-c-0")
    cluster.pods["tiny-b-0"] = dataclasses.replace(cluster.pods["tiny-b-0"], deleting=True)
    operator.reconcile()
    newest = cluster.records.all[-1]
    assert (newest.outcome, newest.message) == ("aborted", "node b is leaving")


def test_an_agent_that_comes_back_late_is_told_that_its_epoch_was_given_up():
    operator = running("a", "b")
    old, live = (
        dataclasses.replace(operator.cluster.records.all[0], epoch=epoch, outcome=outcome)
        for epoch, outcome in ((2, "aborted"), (3, "live"))
    )
    for agent in operator.cluster.agents.values():
        agent.change(0, epoch=3)
    directive = operator.cluster.agents["tiny-b-0"].directive.model_copy(update={"epoch": 2})
    operator.cluster.agents["tiny-b-0"].directive = directive
    epochs = (*operator.cluster.snapshot().epochs, old, live)
    sent = [a for a in look(operator, epochs=epochs).actions if isinstance(a, SendDirective)]
    assert [(a.pod, a.directive.epoch, a.directive.phase) for a in sent] == [
        ("tiny-b-0", 2, "abort")
    ]


def test_directives_carry_what_the_planner_said_of_a_step_and_of_communicators():
    operator = gathering()
    operator.settle()
    record = operator.cluster.records.all[-1]
    reply = next(iter(operator.cluster.replies.values()))
    directive = operator.cluster.agents["tiny-b-0"].directive
    assert directive.step_s == record.step_s == reply.iteration_s
    assert directive.group_bytes == dict(record.group_bytes) == {"demo-fast": 7}
    assert record.group_bytes == reply.group_bytes


def test_a_rank_that_beats_and_never_gets_prepared_ends_the_change():
    operator = gathering("a")
    operator.cluster._is_busy = lambda key, pods: key.startswith("prepare")
    operator.run(lambda _: operator.cluster.records.all[-1].seal is not None)
    sealed_s = operator.cluster.now
    while operator.cluster.records.all[-1].outcome == "open":
        operator.reconcile()
        operator.cluster.tick(10.0)
    waited_s = operator.cluster.now - sealed_s
    assert LIMITS.prepare_timeout_s <= waited_s <= LIMITS.prepare_timeout_s + 30
    message = operator.cluster.records.all[-1].message
    assert message.startswith("the rank on GPU 0 of a was not prepared after 300 s")


def test_a_rank_that_cannot_begin_is_quoted():
    """Such as one whose image lacks NCCL: its exit status says nothing."""
    operator = gathering("a")
    while operator.cluster.records.all[-1].seal is None:
        operator.reconcile()
        operator.cluster.tick()
    agent, said = operator.cluster.agents["tiny-b-0"], "HEDDLE_WIRE asks for nccl"
    agent.ranks.clear()
    agent.exits.append(RankExit(slot=0, pid=77, code=1, at_s=0.0, error=said))
    record = operator.cluster.records.all[-1]
    view = view_of(operator.job, operator.cluster.snapshot(), operator.cluster.now)
    fault = formation_fault(view, record)
    assert fault.endswith(f"ended with exit status 1: {said}")
