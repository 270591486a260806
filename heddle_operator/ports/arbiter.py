"""The seam between a job and whoever says how many GPUs it may have: ours, or a queue's."""

from __future__ import annotations

from typing import Protocol

from heddle_operator.rules.arbitration.demand import Allowance, Demand


class Arbiter(Protocol):
    """Divides GPUs among jobs.

    Invariant: no GPU is in the allowances of two jobs.  A smaller allowance than what a job holds
    is given back by a planned move, and whoever gets those GPUs sees them as free only then.
    """

    def allow(self, demand: Demand) -> Allowance:
        """GPUs by node that the job may plan with, now that this is what it holds and wants."""

    def is_shared(self) -> bool:
        """Whether there is another job to divide with."""

    def dealt(self, demand: Demand) -> tuple[tuple[str, int], ...]:
        """Other jobs, by name, and GPUs of nodes that this one could use which they were dealt."""

    def forget(self, job: str) -> None:
        """The job, by uid, wants nothing any more."""
