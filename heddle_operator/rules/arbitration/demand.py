"""Demand of one job to the arbiter, and the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from heddle_operator.state.worth import NodeSizes, Worth

Allowance = Mapping[str, int]  # GPUs by node


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """GPUs that one job holds and wants.

    Attributes:
        job: its uid.
        priority: the value of its pods' PriorityClass.
        since: when it was created; among equals the older one comes first.
        least: GPUs without which it cannot train.
        most: GPUs that it may use at most.
        weight: worth of a further GPU in units of its mean GPU, in (0, 1]; 1 where nobody knows.
        nodes: node and GPUs there that it could use if no other job were there.
        pods: node and GPUs of what it holds; of a node only the last one can be given back.
        firm: GPUs that it takes by itself; beyond them it gets what nobody else takes.
        further: GPUs that it may hold beside those it has; quotas limit them.
        types: GPU type by node; one that is not here has the type "".
        worth: what GPUs of each type are worth to it; None: nobody knows yet.
        name: of the job, with its namespace, for people.
        weighed: the nodes that the planner is asked about to learn that; (): it need not be.
        min_holders: nodes that each piece of its state is to be on.
    """

    job: str
    priority: int
    since: str
    least: int
    most: int
    weight: float
    nodes: tuple[tuple[str, int], ...]
    pods: tuple[tuple[str, int], ...] = ()
    firm: float = math.inf
    further: float = math.inf
    types: Mapping[str, str] = field(default_factory=dict)
    worth: Worth | None = None
    name: str = ""
    weighed: NodeSizes = ()
    min_holders: int = 1
