"""The planner as a process: a line of JSON in, a line of JSON out, until its input closes.

A search never holds the decision loop, and a planner that crashes takes nothing with it.  It says
`READY` once it is warm, and never imports torch.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from heddle_operator.apis.errors import SPEC_FIELDS
from planner.api import answer as answer_of
from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import GpuLimits
from planner.compilation import warm_up
from planner.cost.evaluate import cost_of
from planner.cost.money import plan_price
from planner.cost.variants import FEW_GPUS
from planner.errors import HeddleError
from planner.model.catalogue import find_model
from planner.model.shape import ModelShape
from planner.model.workload import GpuWire, Precision, Recompute, Workload, Zero
from planner.plans.pieces import holders_min
from planner.plans.plan import Plan, faults
from planner.profiles.chosen import choose_profile
from planner.profiles.profile import Profile
from planner.request import DEFAULT_EVALUATIONS, Objective, PlanRequest
from planner.search.curves import mixed_throughputs, throughput_curves

READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Part of each question that stays the same for all plans of a job.

    Attributes:
        profiles: folder of an administrator's profiles; None: there is none.
        shape: of the model; None: the one that has this name.
    """

    model: str
    global_batch: int
    sequence_length: int
    seed: int = 0
    min_holders: int = 1
    budget_evaluations: int | None = None
    budget_s: float | None = None
    profiles: str | None = None
    shape: dict[str, Any] | None = None
    precision: Precision = "fp32"
    wire: GpuWire = "nccl"
    recompute: Recompute = "none"
    zero: Zero = "Off"
    objective: Objective = "throughput"

    def most_evaluations(self, gpus: int) -> int | None:
        """Plans that may be priced for so many GPUs; None: as many as the seconds allow.

        On a few GPUs, which are searched exactly as well, the best plan is found long before the
        seconds have passed, and a job that lost a node waits for it.
        """
        if self.budget_evaluations is None and gpus <= FEW_GPUS:
            return DEFAULT_EVALUATIONS
        return self.budget_evaluations

    @property
    def workload(self) -> Workload:
        """Workload that is planned for."""
        model = find_model(self.model) if self.shape is None else ModelShape.from_json(self.shape)
        return Workload(
            model=model,
            global_batch=self.global_batch,
            sequence_length=self.sequence_length,
            precision=self.precision,
            zero=int(self.zero == "Stage1"),
            recompute=self.recompute,
            memory="worker",
            wire=self.wire,
        )


def answer(settings: SearchSettings, profile: Profile, question: dict[str, Any]) -> dict[str, Any]:
    """Search one plan; a question without an answer gets the reason in `problem`."""
    workload = settings.workload
    if "weigh" in question:
        nodes = Composition.from_json(question["weigh"])
        request = PlanRequest(
            workload=workload,
            composition=nodes,
            seed=settings.seed,
            zero_where_needed=settings.zero == "Auto",
        )
        curves = throughput_curves(request, profile)
        mixed, is_complete = mixed_throughputs(request, profile, curves)
        return {"curves": curves, "mixed": mixed, "is_complete": is_complete}
    composition = Composition.from_json(question["composition"])
    current = Plan.from_json(question["current"]) if question["current"] else None
    max_gpus = GpuLimits.from_json(question.get("max_gpus", {}))
    request = PlanRequest(
        workload=workload,
        composition=composition,
        current=current,
        max_gpus=max_gpus,
        objective=settings.objective,
        seed=settings.seed,
        min_holders=settings.min_holders,
        budget_evaluations=settings.most_evaluations(max_gpus.allowed(composition)),
        budget_s=settings.budget_s,
        zero_where_needed=settings.zero == "Auto",
    )
    try:
        found = answer_of(request, profile)
    except HeddleError as error:
        return {"problem": error.named(SPEC_FIELDS)}
    return {
        "plan": found.plan.to_json(),
        "throughput_samples_s": found.cost.throughput_samples_s,
        "iteration_s": found.cost.iteration_s,
        "memory_bytes": found.cost.peak_memory_bytes,
        "simulation_s": found.simulation_s,
        "price": plan_price(found.plan, composition),
        "holders_min": found.holders_min,
        "notes": list(found.notes),
        **(_worth_of(current, workload, composition, profile) if current else {}),
    }


def _worth_of(
    current: Plan, workload: Workload, composition: Composition, profile: Profile
) -> dict[str, Any]:
    """What the current plan is worth on these nodes, or why it has no price there.

    It never takes the answer with it: the job needs the new plan all the more.
    """
    found = faults(current, workload, composition)
    if found:
        return {"current_problem": found[0]}
    try:
        cost = cost_of(current, workload, composition, profile)
    except HeddleError as error:
        return {"current_problem": error.named(SPEC_FIELDS)}
    return {
        "current_samples_s": cost.throughput_samples_s,
        "current_price": plan_price(current, composition),
        "current_holders": holders_min(workload.model, current),
    }


@lru_cache(maxsize=8)
def profile_of(settings: str) -> tuple[SearchSettings, Profile]:
    """The settings of a question, in JSON, and the profile by which it is answered.

    Raises:
        HeddleError: the model or its profile cannot be read.
    """
    found = SearchSettings(**json.loads(settings))
    folder = Path(found.profiles) if found.profiles else None
    return found, choose_profile(found.workload, folder).profile


def warm() -> None:
    """Search once: loading what was compiled takes nothing from the first question's time."""
    settings = SearchSettings(
        model="tiny-llama", global_batch=8, sequence_length=128, budget_evaluations=100
    )
    nodes = Composition.from_text("demo-fast=2x2,demo-slow=1x2")
    question = {"composition": nodes.to_json(), "current": None}
    answer(settings, choose_profile(settings.workload).profile, question)


def main() -> None:
    """Serve questions from standard input until it closes, or nobody reads the answers any more."""
    try:
        _serve()
    except BrokenPipeError:  # whoever asked was killed; Python flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _serve() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when this ends
        signal.signal(number, signal.SIG_IGN)
    warm_up()
    warm()
    gc.collect()
    gc.freeze()  # what is loaded stays: looking through it takes 50 ms of a search
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        question = json.loads(line)
        try:
            settings, profile = profile_of(json.dumps(question["settings"]))
            reply = answer(settings, profile, question)
        except HeddleError as error:
            reply = {"problem": error.named(SPEC_FIELDS)}
        sys.stdout.write(f"{json.dumps(reply)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
