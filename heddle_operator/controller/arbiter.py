"""The arbiter of one operator: the newest demand of each of its jobs, and the rule over all.

Invariant: it holds nothing that matters; after a restart each job says anew what it holds and
wants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from heddle_operator.rules.arbitration.arbitrate import arbitrate
from heddle_operator.rules.arbitration.demand import Allowance, Demand


class PriorityArbiter:
    """`Arbiter` by the priority of pods.

    Args:
        on_change: gets the uid of another job whose allowance has changed.
    """

    def __init__(self, on_change: Callable[[str], None] = lambda _: None) -> None:
        self._demands: dict[str, Demand] = {}
        self._allowances: dict[str, Allowance] = {}
        self._on_change = on_change

    def jobs(self) -> Collection[str]:
        """Uids of the jobs among which it divides."""
        return self._demands.keys()

    def allow(self, demand: Demand) -> Allowance:
        """See `Arbiter`."""
        if self._demands.get(demand.job) != demand:
            self._demands[demand.job] = demand
            self._divide(demand.job)
        return self._allowances[demand.job]

    def is_shared(self) -> bool:
        """See `Arbiter`."""
        return len(self._demands) > 1

    def dealt(self, demand: Demand) -> tuple[tuple[str, int], ...]:
        """See `Arbiter`."""
        usable = {node for node, _ in demand.nodes}
        found = []
        for job, allowance in self._allowances.items():
            other = self._demands[job]
            gpus = sum(n for node, n in allowance.items() if node in usable)
            if job != demand.job and gpus and sum(allowance.values()) >= other.least:
                found.append((other.name, gpus))
        return tuple(sorted(found, key=lambda row: (-row[1], row[0])))

    def forget(self, job: str) -> None:
        """See `Arbiter`."""
        if self._demands.pop(job, None) is not None:
            self._divide(job)

    def _divide(self, asking: str) -> None:
        before, self._allowances = self._allowances, arbitrate(self._demands.values())
        for job, allowance in self._allowances.items():
            if job != asking and allowance != before.get(job):
                self._on_change(job)
