"""Questions to the planner and its answers, as data.

Invariant: an answer says where its plan came from, step by step of the search, and what it could
not do (`notes`).  JSON keys are those of `heddle plan --output json`.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import UNLIMITED, GpuLimits
from planner.cost.evaluate import PlanCost
from planner.cost.money import money_per_sample, plan_price
from planner.cost.simulation import simulated_seconds
from planner.cost.variants import FEW_GPUS
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, Plan, Stage
from planner.profiles.profile import Profile

DEFAULT_BUDGET_S = 2.0  # of a search whose request names no budget
DEFAULT_EVALUATIONS = 3000  # plans that end it sooner on few GPUs, which are searched exactly
DEFAULT_MAX_TEMPLATES = 8
DEFAULT_MAX_STAGES = 24

DEFAULT_ROLLOUTS = 128
ROLLOUT_METHODS = ("policy", "random")  # they build plans, and search nothing
MOST_THREADS = 64
MOST_ROLLOUTS = 20_000

Method = Literal["auto", "policy", "search", "columns", "random"]
Objective = Literal["throughput", "cost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A question to the planner."""

    workload: Workload  # what is trained
    # the GPUs that there are; with a price on every node where money counts
    composition: Composition
    # the plan that runs now; the answer is never worse while it still fits
    current: Plan | None = None
    # of the local search; equal requests get equal plans unless `budget_s` cuts them short
    seed: int = 0
    # on how many nodes each piece of the state must live, where that is possible
    min_holders: int = 1
    # plans that may be priced, and seconds after which the search ends with the best plan so far;
    # one that is named stands alone, and without both the default ends the search
    budget_evaluations: int | None = None
    budget_s: float | None = None
    # of the search, where nothing but seconds ends it; None: one for each core, at most four
    threads: int | None = None
    max_stages: int | None = None  # of a template; None: min(layers, 24)
    max_templates: int = DEFAULT_MAX_TEMPLATES  # most templates of a plan
    # which engine searches; auto: all, one after the other; policy and random: rollouts alone, of
    # the learned policy, and of uniform choices
    method: Method = "auto"
    rollouts: int = DEFAULT_ROLLOUTS  # how many of them, of which the best is taken
    policy: Path | None = None  # folder of a trained policy; None: the one that comes with Heddle
    objective: Objective = "throughput"  # samples per second, or money per sample
    min_throughput: float | None = None  # samples per second that the plan must reach
    max_price: float | None = None  # money per hour that its nodes may cost
    max_gpus: GpuLimits = UNLIMITED  # that it may use, in all and of a GPU type
    allow_ep: bool = True  # whether whole experts may be spread over GPUs (EP above 1)
    zero_where_needed: bool = False  # ask again with ZeRO 1 where no plan without it fits
    wants_marginal: bool = False  # say what one more node of each type would add

    @property
    def needs_prices(self) -> bool:
        """Whether the prices of nodes matter to the answer."""
        return self.objective == "cost" or self.max_price is not None

    @property
    def most_evaluations(self) -> int:
        """The most plans that may be priced; `sys.maxsize` without a limit."""
        if self.budget_evaluations is not None:
            return self.budget_evaluations
        allowed = self.max_gpus.allowed(self.composition)
        is_short = self.budget_s is None and allowed <= FEW_GPUS
        return DEFAULT_EVALUATIONS if is_short else sys.maxsize

    @property
    def most_seconds(self) -> float:
        """The most seconds that the search may take; infinite without a limit."""
        if self.budget_s is not None:
            return self.budget_s
        return DEFAULT_BUDGET_S if self.budget_evaluations is None else math.inf

    @property
    def deepest(self) -> int:
        """The most stages that a template may have."""
        layers = self.workload.model.layers
        return min(layers, DEFAULT_MAX_STAGES if self.max_stages is None else self.max_stages)


@dataclass(frozen=True, slots=True)
class SearchStep:
    """How far one step of the search got."""

    method: str  # what this step did
    evaluations: int  # plans priced so far
    throughput_samples_s: float  # of the best plan so far; 0 if there is none yet
    seconds: float = 0.0  # that this step took

    def to_json(self) -> dict[str, Any]:
        """The row of `search_steps`."""
        return {
            "method": self.method,
            "seconds": self.seconds,
            "evaluations": self.evaluations,
            "throughput_samples_s": self.throughput_samples_s,
        }


def idle_gpus(plan: Plan, composition: Composition) -> tuple[tuple[str, int], ...]:
    """(node, number of GPUs) that a plan leaves unused, where there are any."""
    used: Counter[str] = Counter()
    for placed in plan.placement:
        used[placed.node] += len(placed.gpus)
    left = ((node.name, node.gpus - used[node.name]) for node in composition.nodes)
    return tuple((name, count) for name, count in left if count)


@dataclass(frozen=True, slots=True)
class MarginalGain:
    """Worth of one more node of a type."""

    gpu_type: str  # of the node
    gpus: int  # of the node, the size most nodes of that type have
    gain_samples_s: float  # samples per second more than without it


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """The plan that was found, with all that an adopter needs to judge it."""

    plan: Plan  # placed on the composition
    cost: PlanCost  # its formula cost
    holders_min: int  # on how many nodes every piece lives at least
    search_steps: tuple[SearchStep, ...]  # the way to the plan
    planning_s: float  # wall time of the search
    bytes_to_move: int | None  # from the current plan; None if there is none
    idle: tuple[tuple[str, int], ...]  # (node, number of GPUs) that the plan leaves unused
    notes: tuple[str, ...] = ()  # one sentence for each wish that could not be granted
    # what one more node of each type would add, most first, if that was asked
    marginal: tuple[MarginalGain, ...] = ()

    @property
    def throughput_samples_s(self) -> float:
        """Predicted by the formula."""
        return self.cost.throughput_samples_s

    @property
    def simulation_s(self) -> float:
        """The simulated step, which the runtime should match; computed when it is asked for."""
        return simulated_seconds(self.cost)

    def to_json(self, request: PlanRequest, profile: Profile) -> dict[str, Any]:
        """The answer as plain data; `Plan.from_json` reads the plan back from it."""
        plan = self.plan.to_json()
        has_experts = request.workload.model.experts is not None
        for index, (row, template) in enumerate(
            zip(plan["templates"], self.plan.templates, strict=True)
        ):
            prices = next(r for r in self.cost.replicas if r.template == index).stages
            for stage_row, stage, priced in zip(
                row["stages"], template.stages, prices, strict=True
            ):
                stage_row["tiling"] = _tiling(template, stage) if has_experts else None
                stage_row["stage_s"] = priced.time_s
                stage_row["peak_memory_bytes"] = priced.peak_memory_bytes
        return {
            "workload": replace(request.workload, zero=self.plan.zero).to_json(),
            "composition": request.composition.to_json(),
            "profile_digest": profile.digest,
            "profile_origin": profile.origin,
            "link_origin": profile.link_origin,
            "edges": "placement",
            "throughput_samples_s": self.cost.throughput_samples_s,
            "iteration_s": self.cost.iteration_s,
            "simulated_s": self.simulation_s,
            "planning_s": self.planning_s,
            "search_steps": [step.to_json() for step in self.search_steps],
            "gpus_used": self.plan.gpus,
            "gpus_idle": request.composition.gpus - self.plan.gpus,
            "idle": [{"node": node, "gpus": count} for node, count in self.idle],
            "holders_min": self.holders_min,
            "bytes_to_move": self.bytes_to_move,
            "notes": list(self.notes),
            **self._money_json(request.composition),
            **self._wishes_json(request),
            **plan,
        }

    def _money_json(self, composition: Composition) -> dict[str, Any]:
        """Cost of the plan in money, where the nodes have prices."""
        per_hour = plan_price(self.plan, composition)
        if per_hour is None:
            return {}
        per_sample = money_per_sample(self.plan, self.cost, composition)
        return {"price_per_hour": per_hour, "money_per_sample": per_sample}

    def _wishes_json(self, request: PlanRequest) -> dict[str, Any]:
        """Other questions answered besides the plan."""
        rows: dict[str, Any] = {}
        if request.max_gpus:
            rows["max_gpus"] = request.max_gpus.to_json()
        if request.wants_marginal:
            rows["marginal"] = [asdict(gain) for gain in self.marginal]
        return rows


def _tiling(template: FilledTemplate, stage: Stage) -> dict[str, int]:
    """How the experts of a stage are spread over its devices, those of all replicas."""
    etp = stage.expert_tp
    copies = template.replicas * stage.tp // (stage.ep * etp)
    return {"ep": stage.ep, "etp": etp, "edp": copies}
