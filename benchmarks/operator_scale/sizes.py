"""How large the emulated cluster is, and what is measured on it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

GPUS = 8  # of a node
JOB_NODES = 2
CHANGES = 100  # of a phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes to emulate.

    Args:
        foreign_pods: pods of others, without GPUs, on all nodes.
        large_nodes: of a job that starts while the others train; 0: none does.
        largest_gpus: maxGPUs of a second such job; 0: there is none.
        moves: jobs that lose a node by a drain, and as many again by a deletion.
        idle_s: in which the operator's CPU time at rest is taken.
        changes_s: in which the changes of a phase come.
    """

    nodes: int = 1000
    jobs: int = 50
    foreign_pods: int = 10_000
    large_nodes: int = 100
    largest_gpus: int = 1200
    moves: int = 10
    idle_s: float = 15.0
    changes_s: float = 10.0

    def to_json(self) -> str:
        """For the process that measures."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Sizes:
        """The reverse."""
        return cls(**json.loads(text))


@dataclass(slots=True, kw_only=True)
class Measured:
    """Cost of one phase.

    Attributes:
        wall_s: of the phase.
        cpu_s: of the operator's process in it.
        rate_cpu_s: the same of a second at rest with the same jobs; it is to be taken off.
        blocked_s: bound from above of the longest turn of the loop; None: no turn was told of.
        turn_cpu_s: the same of the CPU time in a turn.
        decision_p95_s: bound from above, by the operator's own histogram.
        writes: requests to the API server that write, without those of this program.
        waits_s: from each event to what followed it, as the phase says.
        note: in words, what else is to be known.
    """

    phase: str
    wall_s: float
    cpu_s: float
    rate_cpu_s: float = 0.0
    blocked_s: float | None = None
    turn_cpu_s: float | None = None
    decision_p95_s: float | None = None
    writes: int = 0
    waits_s: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def net_cpu_s(self) -> float:
        """The operator's CPU time, less that at rest."""
        net_s = self.cpu_s - self.rate_cpu_s * self.wall_s
        return net_s if math.isnan(net_s) else max(0.0, net_s)

    @property
    def wait_p95_s(self) -> float | None:
        """95th percentile of the waits, the upper of two neighbours."""
        found = sorted(self.waits_s)
        return found[min(len(found) - 1, int(0.95 * len(found)))] if found else None


def measured_of(text: str) -> list[Measured]:
    """The phases that the measuring process wrote, one JSON object a line."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    return [Measured(**row) for row in rows]
