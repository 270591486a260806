"""Directives of the operator for this pod: the newest, and that of every epoch it still needs."""

from __future__ import annotations

from planner.plans.plan import Plan
from planner.plans.ranks import RankMap, Seat
from worker.contract import Directive, RankReport


class Directives:
    """The directives that an agent has accepted.

    Attributes:
        newest: that the pod follows.
    """

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self.newest: Directive | None = None
        self._by_epoch: dict[int, Directive] = {}
        self._trained: int | None = None  # the newest epoch that a rank of this pod belonged to

    def add(self, directive: Directive) -> None:
        """Follow an admitted directive from now on."""
        self.newest = self._by_epoch[directive.epoch] = directive

    def heard(self, report: RankReport) -> None:
        """A rank said whose layout it holds; what came before the newest such is dropped."""
        if report.epoch is not None and report.epoch > (self._trained or 0):
            self._trained = report.epoch
            self._by_epoch = {e: d for e, d in self._by_epoch.items() if e >= report.epoch}

    @property
    def seated_slots(self) -> frozenset[int]:
        """This pod's slots with a rank in the newest epoch that one of its ranks belonged to."""
        directive = self._by_epoch.get(self._trained or 0)
        members = directive.members if directive else ()
        return frozenset(m.slot for m in members if m.pod == self._pod and m.rank is not None)

    def of(self, report: RankReport | None) -> Directive | None:
        """The directive of the epoch that a rank belongs to, if it is known."""
        return self._by_epoch.get(report.epoch or 0) if report is not None else None

    def seat(self, report: RankReport | None) -> Seat | None:
        """A rank's place in the plan that it trains."""
        directive = self.of(report)
        if directive is None or report is None or report.rank is None:
            return None
        return RankMap.of(Plan.from_json(directive.plan)).seats[report.rank]
