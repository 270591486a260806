"""The eviction API of the fake cluster: marks of pods, budgets over them, and pods that are let go.

An eviction is allowed where a budget covers more live pods than it keeps, or none covers the pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from heddle_operator.apis.labels import FREELY, ONE_AT_A_TIME
from heddle_operator.resources.disruption_budget import Mark, least_available, mark_of
from heddle_operator.rules.drain import Drain, drain_of
from heddle_operator.state.situation import situation
from tests.fakes.operator import FakeOperator, view_of

GRACE_S = 60.0


class Evictions:
    """The budgets of one job."""

    def __init__(self, operator: FakeOperator) -> None:
        self._operator = operator
        self._cluster = operator.cluster
        self._marks: dict[str, Mark] = {}
        self._least: dict[Mark, int] = {None: 0, ONE_AT_A_TIME: 0}
        self._written = False

    def writing(self, drain: Drain) -> Iterator[None]:
        """What the controller writes after a decision, one write after the other."""
        marks = {name: self._marks.get(name) for name in self._live()}
        protected, yielding = least_available(marks, drain)
        self._least = {None: protected, ONE_AT_A_TIME: yielding}
        self._written = True
        yield
        for name in sorted(marks):
            self._marks[name] = mark_of(name, drain)
            yield

    def drain(self) -> Drain:
        """What evictions may do by what the operator sees now."""
        seen, operator = self._cluster.snapshot(), self._operator
        now = self._cluster.now
        where = situation(seen, now, operator.settings)
        return drain_of(view_of(operator.job, seen, now, situation=where))

    def allowed(self) -> list[str]:
        """Pods that would be evicted if anybody asked now."""
        live = self._live()
        if not self._written:
            return []
        marks = [self._marks.get(name) for name in live]
        open_to = {m: marks.count(m) > self._least[m] for m in (None, ONE_AT_A_TIME)}
        return [
            name
            for name, mark in zip(live, marks, strict=True)
            if mark == FREELY or open_to.get(mark)
        ]

    def evict(self, name: str) -> None:
        """The pod gets its notice; its agent trains on until its ranks have left."""
        cluster = self._cluster
        leaving = {"deleting": True, "leaving_at_s": cluster.now + GRACE_S}
        cluster.pods[name] = replace(cluster.pods[name], **leaving)
        self._marks.pop(name, None)
        agent = cluster.agents.get(name)
        if agent is None:
            cluster.pods.pop(name)
        else:
            agent.leaving_at_s = cluster.now + GRACE_S
            agent.version += 1

    def pass_time(self) -> None:
        """Evicted pods end once nobody needs them, or when their grace is over."""
        cluster = self._cluster
        for name, agent in list(cluster.agents.items()):
            is_over = agent.leaving_at_s is not None and cluster.now >= agent.leaving_at_s
            if is_over or (agent.leaving_at_s is not None and not agent.ranks):
                cluster.kill_pod(name)
                cluster.pods.pop(name)
        self._marks = {name: m for name, m in self._marks.items() if name in cluster.pods}

    def _live(self) -> list[str]:
        pods = self._cluster.pods.values()
        return sorted(p.name for p in pods if p.phase != "ended" and not p.deleting)
