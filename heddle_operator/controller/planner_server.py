"""The planner as a process: a line of JSON in, a line of JSON out, until its input closes.

The word `HURRY` after a question ends its search early, with the best plan so far.
A search never holds the decision loop, and a planner that crashes takes nothing with it.  It says
`READY` once it is warm, and never imports torch.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from heddle_operator.apis.errors import SPEC_FIELDS
from planner.api import answer as answer_of
from planner.cluster.composition import Composition, Node
from planner.cluster.gpu_limits import GpuLimits
from planner.compilation import warm_up
from planner.cost.evaluate import cost_of
from planner.cost.memory import plan_group_bytes
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
from planner.search.budget import never
from planner.search.curves import Rates, mixed_throughputs, throughput_curves

READY = "ready"
HURRY = b"hurry"
GAVE_WAY = "the search ended early, as a job that lost nodes waited for its turn"
SETTINGS_KEPT = 8  # of jobs, with profile and short searches
RATES_KEPT = 2000  # short searches of one job; a weighing has some hundreds
LEAST_S = 2.0  # that a search has before it is ended early: the default budget of a plan


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


class Questions:
    """Lines of standard input.

    Args:
        source: file descriptor that nobody else reads from.
        clock: seconds.
    """

    def __init__(self, source: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._clock = source, clock
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._is_open = True
        self._is_hurried = False
        self._began_s = 0.0
        self._one = threading.Lock()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Questions as they come, until the input closes."""
        while True:
            while not self._lines and self._is_open:
                self._read()
            if not self._lines:
                return
            line = self._lines.popleft()
            if line == HURRY:  # it came after the answer
                continue
            self._is_hurried, self._began_s = False, self._clock()
            yield json.loads(line)

    def is_hurried(self) -> bool:
        """Whether the search of the last question is to end now; any of its threads may ask."""
        with self._one:
            if self._is_open and select.select([self._source], [], [], 0)[0]:
                self._read()
            self._is_hurried |= HURRY in self._lines
            return self._is_hurried and self._clock() - self._began_s >= LEAST_S

    def _read(self) -> None:
        data = os.read(self._source, 1 << 16)
        self._is_open = bool(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines += lines


def answer(
    settings: SearchSettings,
    profile: Profile,
    question: dict[str, Any],
    is_hurried: Callable[[], bool] = never,
    known: Rates | None = None,
) -> dict[str, Any]:
    """Search one plan; a question without an answer gets the reason in `problem`.

    Args:
        settings: of all searches of the job.
        profile: by which plans are priced.
        question: composition, current plan and limits; or the nodes whose GPUs are weighed.
        is_hurried: whether to end early.
        known: short searches for these settings that were done; takes over further ones.

    Raises:
        KeyboardInterrupt: the search was hurried before it had a plan, or all curves.
    """
    workload = settings.workload
    if "weigh" in question:
        nodes = Composition.from_json(question["weigh"])
        request = PlanRequest(
            workload=workload,
            composition=nodes,
            seed=settings.seed,
            zero_where_needed=settings.zero == "Auto",
        )
        curves = throughput_curves(request, profile, is_hurried, known)
        mixed, is_complete = mixed_throughputs(request, profile, curves, is_hurried, known)
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
        found = answer_of(request, profile, interrupted=is_hurried)
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
        "group_bytes": plan_group_bytes(found.plan, workload, profile),
        "notes": [*found.notes, *([GAVE_WAY] if is_hurried() else [])],
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


@lru_cache(maxsize=SETTINGS_KEPT)
def profile_of(settings: str) -> tuple[SearchSettings, Profile]:
    """The settings of a question, in JSON, and the profile by which it is answered.

    Raises:
        HeddleError: the model or its profile cannot be read.
    """
    found = SearchSettings(**json.loads(settings))
    folder = Path(found.profiles) if found.profiles else None
    return found, choose_profile(found.workload, folder).profile


class KnownRates:
    """Short searches that were done, by settings: a weighing that gave way goes on from them."""

    def __init__(self) -> None:
        self._by_settings: dict[str, dict[tuple[Node, ...], float]] = {}

    def of(self, settings: str) -> dict[tuple[Node, ...], float]:
        """Those of these settings; what was used longest ago is forgotten."""
        found = self._by_settings.pop(settings, {})
        self._by_settings[settings] = {} if len(found) > RATES_KEPT else found
        if len(self._by_settings) > SETTINGS_KEPT:
            del self._by_settings[next(iter(self._by_settings))]
        return self._by_settings[settings]


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
    questions, searched = Questions(sys.stdin.fileno()), KnownRates()
    for question in questions:
        try:
            key = json.dumps(question["settings"])
            settings, profile = profile_of(key)
            reply = answer(settings, profile, question, questions.is_hurried, searched.of(key))
        except HeddleError as error:
            reply = {"problem": error.named(SPEC_FIELDS)}
        except KeyboardInterrupt:
            reply = {"gave_way": True}
        sys.stdout.write(f"{json.dumps(reply)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
