"""What the planner is asked and what it answers, as data.

Invariant: an answer says where its plan came from, stage by stage of the search, and what it could
not do (`notes`).  JSON keys are those of `heddle plan --output json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from planner.composition import Composition
from planner.cost import Price
from planner.plan import Plan
from planner.profile import Profile
from planner.workload import Workload

DEFAULT_EVALUATIONS = 3000
DEFAULT_MAX_TEMPLATES = 4
DEFAULT_D_MAX = 24


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A question to the planner.

    Attributes:
        workload: what is trained.
        composition: the GPUs that there are.
        current: the plan that runs now; the answer is never worse while it still fits.
        seed: of the local search; equal requests get equal plans unless `budget_s` cuts them short.
        min_holders: on how many nodes each piece of the state must live, where that is possible.
        budget_evaluations: plans that may be priced.
        budget_s: seconds after which the search ends with the best plan so far; None: no limit.
        d_max: most stages of a template; None: min(layers, 24).
        max_templates: most templates of a plan.
    """

    workload: Workload
    composition: Composition
    current: Plan | None = None
    seed: int = 0
    min_holders: int = 1
    budget_evaluations: int = DEFAULT_EVALUATIONS
    budget_s: float | None = None
    d_max: int | None = None
    max_templates: int = DEFAULT_MAX_TEMPLATES
    method: Literal["auto", "policy", "search", "columns", "brute-force"] = "auto"
    objective: Literal["throughput", "cost"] = "throughput"
    min_throughput: float | None = None
    max_price: float | None = None
    allow_ep: bool = True
    wants_bound: bool = False
    wants_marginal: bool = False

    @property
    def deepest(self) -> int:
        """The most stages that a template may have."""
        layers = self.workload.model.layers
        return min(layers, DEFAULT_D_MAX if self.d_max is None else self.d_max)


@dataclass(frozen=True, slots=True)
class SearchStage:
    """How far one stage of the search got.

    Attributes:
        name: of the stage.
        evaluations: plans priced so far.
        throughput_samples_s: of the best plan so far; 0 if there is none yet.
    """

    name: str
    evaluations: int
    throughput_samples_s: float
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """The plan that was found, with all that an adopter needs to judge it.

    Attributes:
        plan: placed on the composition.
        price: its formula price.
        simulation_s: its simulated step, which the runtime should match.
        holders_min: on how many nodes every piece lives at least.
        stages_of_search: the way to the plan.
        planning_s: wall time of the search.
        bytes_to_move: from the current plan; None if there is none.
        idle: (node, number of GPUs) that the plan leaves unused.
        notes: one sentence for each wish that could not be granted.
    """

    plan: Plan
    price: Price
    simulation_s: float
    holders_min: int
    stages_of_search: tuple[SearchStage, ...]
    planning_s: float
    bytes_to_move: int | None
    idle: tuple[tuple[str, int], ...]
    notes: tuple[str, ...] = ()

    @property
    def throughput_samples_s(self) -> float:
        """Predicted by the formula."""
        return self.price.throughput_samples_s

    def to_json(self, request: PlanRequest, profile: Profile) -> dict[str, Any]:
        """The answer as plain data; `Plan.from_json` reads the plan back from it."""
        plan = self.plan.to_json()
        for index, template in enumerate(plan["templates"]):
            prices = next(r for r in self.price.replicas if r.template == index).stages
            for stage, stage_price in zip(template["stages"], prices, strict=True):
                stage["stage_s"] = stage_price.time_s
                stage["peak_memory_bytes"] = stage_price.peak_memory_bytes
        return {
            "workload": request.workload.to_json(),
            "composition": request.composition.to_json(),
            "profile_digest": profile.digest,
            "profile_origin": profile.origin,
            "link_origin": profile.link_origin,
            "edges": "placement",
            "throughput_samples_s": self.price.throughput_samples_s,
            "iteration_s": self.price.iteration_s,
            "simulated_s": self.simulation_s,
            "planning_s": self.planning_s,
            "stages_of_search": [
                {
                    "name": stage.name,
                    "evaluations": stage.evaluations,
                    "throughput_samples_s": stage.throughput_samples_s,
                }
                for stage in self.stages_of_search
            ],
            "gpus_used": self.plan.gpus,
            "gpus_idle": request.composition.gpus - self.plan.gpus,
            "idle": [{"node": node, "gpus": count} for node, count in self.idle],
            "holders_min": self.holders_min,
            "bytes_to_move": self.bytes_to_move,
            "notes": list(self.notes),
            **plan,
        }


@dataclass(frozen=True, slots=True)
class BoundAnswer:
    """A proven limit of all plans, and how near a plan is to it.

    Attributes:
        bound_samples_s: no plan within the assumptions trains more; None outside the proof.
        gap_percent: by which the bound exceeds the plan; None with it.
        bound_assumes: what the proof rests on; if there is none, the assumption that failed.
    """

    bound_samples_s: float | None
    gap_percent: float | None
    bound_assumes: tuple[str, ...]
