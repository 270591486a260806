"""The decision loop under anything: nodes, agents, ranks and stores die, reports are late."""

from __future__ import annotations

import contextlib
import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from heddle_operator.apis.checkpoint import Checkpoint, Interval
from heddle_operator.apis.errors import ClusterConflict
from heddle_operator.epochs.decide import decide
from heddle_operator.state.settings import Settings
from tests.fakes.operator import FakeOperator, a_cluster, a_job, view_of

LOOPS = int(os.environ.get("HEDDLE_LOOPS", "25"))  # lives of a job
NODES = ("a", "b", "c", "d")
PICK = st.integers(0, 7)


class Loop(RuleBasedStateMachine):
    """The fake checks: one live epoch, no GPU twice, no faulty directive, no piece unheld.

    And: no record is pruned whose layout is held, and no number comes again.
    """

    @initialize(
        as_pipeline=st.booleans(),
        nodes=st.integers(1, 3),
        cooldown=st.sampled_from((0, 1)),
        epochs_kept=st.sampled_from((1, 2, 20)),
        saves=st.booleans(),
    )
    def begin(self, as_pipeline, nodes, cooldown, epochs_kept, saves):
        job = a_job(cooldownSeconds=cooldown)
        if saves:
            checkpoint = Checkpoint(path="/saves", interval=Interval(steps=3))
            spec = job.spec.model_copy(update={"checkpoint": checkpoint})
            job = job.model_copy(update={"spec": spec})
        self.cluster = a_cluster(job, *NODES[:nodes], as_pipeline=as_pipeline)
        self.operator = FakeOperator(job, self.cluster, Settings(epochs_kept=epochs_kept))

    def _pick(self, things, index):
        return sorted(things)[index % len(things)]

    def _decide(self):
        cluster, operator = self.cluster, self.operator
        return decide(
            view_of(operator.job, cluster.snapshot(), cluster.now, settings=operator.settings)
        )

    @rule(passes=st.integers(1, 12))
    def time_passes(self, passes):
        for _ in range(passes):
            self.operator.reconcile()
            self.cluster.tick()

    @rule(answers=st.booleans())
    def only_the_cluster_moves(self, answers):
        self.cluster.tick(answers_plans=answers)

    @rule()
    def deciding_twice_equals_once(self):
        first = self._decide()
        assert self._decide() == first
        self.operator.reconcile()
        before = self.cluster.snapshot(), tuple(self.cluster.created)
        for action in first.actions:
            with contextlib.suppress(ClusterConflict):
                self.cluster.do(action)
        assert (self.cluster.snapshot(), tuple(self.cluster.created)) == before

    @rule(index=PICK)
    def a_node_joins(self, index):
        name = NODES[index % len(NODES)]
        if name not in self.cluster.nodes and len(self.cluster.nodes) < len(NODES):
            self.cluster.add_node(name)

    @precondition(lambda self: len(self.cluster.nodes) > 1)
    @rule(index=PICK)
    def a_node_is_drained(self, index):
        self.cluster.drain(self._pick(self.cluster.nodes, index))

    @precondition(lambda self: self.cluster.nodes)
    @rule(index=PICK, is_cordoned=st.booleans())
    def a_node_is_cordoned_or_not_any_more(self, index, is_cordoned):
        self.cluster.cordon(self._pick(self.cluster.nodes, index), is_cordoned)

    @precondition(lambda self: self.cluster.nodes)
    @rule(index=PICK, applied=st.integers(0, 3), torn=st.booleans())
    def a_node_dies(self, index, applied, torn):
        if torn:
            self.cluster.tear_step(applied)
        self.cluster.kill_node(self._pick(self.cluster.nodes, index))

    @precondition(lambda self: self.cluster.agents)
    @rule(index=PICK)
    def an_agent_dies(self, index):
        self.cluster.kill_pod(self._pick(self.cluster.agents, index))

    @precondition(lambda self: self.cluster.agents)
    @rule(index=PICK)
    def a_store_restarts(self, index):
        self.cluster.restart_store(self._pick(self.cluster.agents, index))

    @precondition(lambda self: any(agent.ranks for agent in self.cluster.agents.values()))
    @rule(index=PICK)
    def a_rank_dies(self, index):
        pods = [name for name, agent in self.cluster.agents.items() if agent.ranks]
        pod = self._pick(pods, index)
        self.cluster.kill_rank(pod, min(self.cluster.agents[pod].ranks))

    @rule(flips=st.integers(0, 4))
    def a_switch_breaks_in_the_middle(self, flips):
        self.cluster.break_switch(flips)

    @property
    def _saves(self):
        return self.operator.job.spec.checkpoint is not None

    def _suspend(self, suspends):
        job = self.operator.job
        spec = job.spec.model_copy(update={"suspend": suspends})
        self.operator.job = job.model_copy(update={"spec": spec})

    @precondition(lambda self: self._saves)
    @rule(suspends=st.booleans())
    def the_job_is_suspended_or_not_any_more(self, suspends):
        self._suspend(suspends)

    @precondition(lambda self: self._saves)
    @rule(error=st.sampled_from((None, "no space left on device")))
    def the_store_fails_or_works_again(self, error):
        self.cluster.store_error = error

    @precondition(lambda self: len(self.cluster.store) > 1)
    @rule()
    def the_newest_checkpoint_is_damaged(self):
        self.cluster.damaged.add(self.cluster.store[-1].manifest)

    @precondition(lambda self: self.cluster.agents)
    @rule(index=PICK)
    def a_report_is_late(self, index):
        self.cluster.snapshot()
        self.cluster.frozen.add(self._pick(self.cluster.agents, index))

    @rule()
    def reports_arrive(self):
        self.cluster.frozen.clear()

    @precondition(lambda self: self.cluster.agents)
    @rule(index=PICK)
    def an_agent_does_not_answer(self, index):
        self.cluster.unreachable.setdefault(
            self._pick(self.cluster.agents, index), self.cluster.now
        )

    @rule()
    def agents_answer_again(self):
        self.cluster.unreachable.clear()

    @invariant()
    def nothing_forbidden_happened(self):
        if hasattr(self, "cluster"):
            self.cluster.check()

    def teardown(self):
        if not hasattr(self, "cluster"):
            return
        self.cluster.frozen.clear()
        self.cluster.unreachable.clear()
        self.cluster.store_error = None
        self._suspend(False)
        if not any(node.leaving_at_s is None for node in self.cluster.nodes.values()):
            self.cluster.kill_node("d")
            self.cluster.add_node("d")
        # The only node may be left out three times, for one, two and four minutes of these passes.
        decision = self.operator.settle(5000)
        assert decision.phase in ("Running", "Failed", "Complete")
        if decision.phase == "Running":
            holders = self.cluster.holders()
            assert {rank.phase for _, rank in holders} == {"training"}
            assert len({rank.epoch for _, rank in holders}) == 1
        elif decision.phase == "Failed":
            assert decision.reason == "StateLost"
            manifests = {found.manifest for found in self.cluster.store}
            assert not manifests - self.cluster.damaged, "a checkpoint was there"


TestLoop = Loop.TestCase
TestLoop.settings = settings(
    max_examples=LOOPS,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
