"""The division of GPUs of one type, written GPU by GPU: slow, and easy to check by reading.

`heddle_operator.rules.arbitration` deals whole runs from heaps; on one GPU type its answers are
these.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping

from heddle_operator.rules.arbitration.demand import Allowance, Demand


def arbitrate(demands: Iterable[Demand]) -> dict[str, Allowance]:
    """GPUs by node for each job; the same for the same demands in any order."""
    ordered = sorted(demands, key=lambda demand: (-demand.priority, demand.since, demand.job))
    table = _Table(ordered)
    for demand in ordered:
        if table.total(demand) < demand.least <= demand.most:
            trial = copy.deepcopy(table)
            if trial.reach_floor(demand):
                table = trial
    table.share_rest({demand.job: demand.firm for demand in ordered})
    table.share_rest({})
    for demand in ordered:
        table.show_nodes(demand)
    return {demand.job: table.answer(demand) for demand in ordered}


class _Table:
    """What each job has and what is free, while it is dealt out."""

    def __init__(self, ordered: list[Demand]) -> None:
        self.ordered = ordered
        self.pods = {demand.job: list(demand.pods) for demand in ordered}
        self.usable = {demand.job: dict(demand.nodes) for demand in ordered}
        self.owed: set[tuple[str, str]] = set()  # (job, node) where it gives a pod back
        self.free: dict[str, int] = {}
        for demand in ordered:
            for node, gpus in demand.nodes:
                self.free[node] = max(gpus, self.free.get(node, 0))
        for demand in ordered:
            for node, gpus in demand.pods:
                self.free[node] = max(0, self.free.get(node, 0) - gpus)

    def total(self, demand: Demand) -> int:
        """GPUs that the job has on nodes it can use."""
        return sum(gpus for node, gpus in self.pods[demand.job] if node in self.usable[demand.job])

    def on_node(self, demand: Demand, node: str) -> int:
        """GPUs that the job has on a node."""
        return sum(gpus for name, gpus in self.pods[demand.job] if name == node)

    def answer(self, demand: Demand) -> Allowance:
        """By node; a job that cannot reach its floor sees what is free, and reserves nothing."""
        found = {node: self.on_node(demand, node) for node, _ in self.pods[demand.job]}
        if self.total(demand) < demand.least:
            for node in self.usable[demand.job]:
                found[node] = found.get(node, 0) + self._room(demand, node)
        return found

    def reach_floor(self, demand: Demand) -> bool:
        """Fill the job's floor from what is free, then from jobs of lower priority."""
        while self.total(demand) < demand.least:
            if not self._give(demand) and not self._take_for(demand):
                return False
        return True

    def share_rest(self, limits: Mapping[str, float]) -> None:
        """Deal out what is free: by priority, then to whom a further GPU is worth most.

        Args:
            limits: GPUs of jobs beyond which they get no more this time.
        """
        for priority in dict.fromkeys(demand.priority for demand in self.ordered):
            equals = [
                demand
                for demand in self.ordered
                if demand.priority == priority and self.total(demand) >= demand.least
            ]
            while equals:
                next_one = min(equals, key=lambda d: (self.total(d) + 1) / d.weight)
                most = min(next_one.most, limits.get(next_one.job, math.inf))
                if self.total(next_one) >= most or not self._give(next_one):
                    equals.remove(next_one)

    def show_nodes(self, demand: Demand) -> None:
        """A job on fewer nodes than its state is to be on sees GPUs of others that nobody wants."""
        if self.total(demand) < demand.least:
            return
        while self._lacks_nodes(demand):
            node = self._best(demand, elsewhere=True)
            if node is None:
                return
            for _ in range(min(self._room(demand, node), int(min(demand.most, demand.further)))):
                self._deal(demand, node)

    def _lacks_nodes(self, demand: Demand) -> bool:
        on = {node for node, gpus in self.pods[demand.job] if gpus}
        return len(on & set(self.usable[demand.job])) < demand.min_holders

    def _room(self, demand: Demand, node: str) -> int:
        if (demand.job, node) in self.owed:
            return 0  # a part of a pod cannot be kept
        own = self.usable[demand.job][node] - self.on_node(demand, node)
        return max(0, min(self.free[node], own))

    def _give(self, demand: Demand) -> bool:
        """One free GPU, on a node that the job has already or that nobody else has, if any.

        On fewer nodes than its state is to be on, it gets one of a further node before.
        """
        node = self._best(demand, elsewhere=True) if self._lacks_nodes(demand) else None
        node = node or self._best(demand, elsewhere=False)
        if node is not None:
            self._deal(demand, node)
        return node is not None

    def _best(self, demand: Demand, *, elsewhere: bool) -> str | None:
        others = {node for d in self.ordered if d.job != demand.job for node, _ in self.pods[d.job]}
        found = (
            (not self.on_node(demand, node), node in others, -self._room(demand, node), node)
            for node in self.usable[demand.job]
            if self._room(demand, node) and not (elsewhere and self.on_node(demand, node))
        )
        return min(found, default=(None,))[-1]

    def _deal(self, demand: Demand, node: str) -> None:
        self.free[node] -= 1
        self.pods[demand.job].append((node, 1))

    def _take_for(self, demand: Demand) -> bool:
        """Free one pod of a job of lower priority: of the lowest, there of whom it costs least."""
        need = demand.least - self.total(demand)
        for lender in sorted(
            (d for d in self.ordered if d.priority < demand.priority),
            key=lambda d: (d.priority, -self.total(d) / d.weight),
        ):
            rows = self.pods[lender.job]
            last = {node: index for index, (node, _) in enumerate(rows)}
            spare = self.total(lender) - lender.least
            found = [
                index
                for node, index in last.items()
                if node in self.usable[demand.job] and rows[index][1] <= spare
            ]
            if found:
                # The smallest one that suffices, else the largest.
                index = min(found, key=lambda i: (rows[i][1] < need, abs(rows[i][1] - need), -i))
                node, gpus = rows.pop(index)
                self.free[node] += gpus
                self.owed.add((lender.job, node))
                return True
        return False
