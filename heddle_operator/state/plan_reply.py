"""Question to the planner and its answer, and the plan that a user refers to.

Invariant: a reference that cannot be read is a sentence, never an error; it quotes nothing of the
ConfigMap, for who wrote the job need not be allowed to read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from planner.cost.money import minimised_price
from planner.errors import HeddleError
from planner.plans.plan import Plan

KEY = "plan.json"
_NO_PLAN = f"{KEY} holds no plan; `heddle cost FILE` names the mistake"


@dataclass(frozen=True, slots=True)
class ReferencedPlan:
    """Content of the ConfigMap of `planRef`, or of the file of a run on one machine.

    Attributes:
        plan: None if it holds none.
        problem: why there is none, in words.
        kind: `ConfigMap` or `file`.
    """

    name: str
    plan: Plan | None
    problem: str = ""
    kind: str = "ConfigMap"

    @property
    def source(self) -> str:
        """Where the plan comes from, in words."""
        return f"{self.kind} {self.name}"


def read_plan_reference(name: str, data: Mapping[str, str]) -> ReferencedPlan:
    """The plan in a ConfigMap's data: `plan.json`, or its only key."""
    if KEY not in data and len(data) != 1:
        return ReferencedPlan(name, None, f"it must hold the key {KEY}")
    text = data[KEY] if KEY in data else next(iter(data.values()))
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError):
        return ReferencedPlan(name, None, f"{KEY} is not JSON")
    if not isinstance(stated, dict):
        return ReferencedPlan(name, None, f"{KEY} is not a JSON object")
    try:
        return ReferencedPlan(name, Plan.from_json(stated))
    except HeddleError:
        return ReferencedPlan(name, None, _NO_PLAN)


class PlanKey(NamedTuple):
    """Question of a plan: digests of composition and current plan ("" at the start)."""

    composition: str
    current: str
    max_gpus: str = ""  # limits of the search, in words; "" without any


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReply:
    """The planner's answer.

    Attributes:
        plan: the best plan found; None if none is feasible.
        current_samples_s: throughput of the current plan on the same composition; None where it
            has no price there.
        current_problem: why it has none, in words.
        current_holders: nodes that every piece of the state lives on at least, by the current plan;
            0 where it has no price.
        memory_bytes: most that a GPU is to hold.
        group_bytes: (GPU type of the plan, bytes that NCCL holds there for each communicator), as
            the planner counted them; empty where nobody counted.
        price: money per hour of the plan's nodes, where money decides; else None.
        current_price: the same of the current plan.
        holders_min: nodes that every piece of the state is to live on at least.
        problem: why there is no plan.
        gpus: that have no plan; 0 where there is one, or the search failed.
        notes: wishes that the plan does not grant, a sentence each, such as `minHolders`.
    """

    plan: Plan | None
    throughput_samples_s: float = 0.0
    iteration_s: float = 0.0
    memory_bytes: int = 0
    simulation_s: float = 0.0
    current_samples_s: float | None = None
    current_problem: str = ""
    holders_min: int = 0
    current_holders: int = 0
    problem: str = ""
    gpus: int = 0
    notes: tuple[str, ...] = ()
    group_bytes: tuple[tuple[str, int], ...] = ()
    price: float | None = None
    current_price: float | None = None

    @property
    def gain(self) -> float | None:
        """Share by which the plan is better than the current one, which it may replace.

        Of samples per second, or of samples for the same money where money decides; None where the
        current plan has no price.
        """
        if self.current_samples_s is None:
            return None
        faster = self.throughput_samples_s / self.current_samples_s
        if self.price is None or self.current_price is None:
            return faster - 1
        return faster * minimised_price(self.current_price) / minimised_price(self.price) - 1
