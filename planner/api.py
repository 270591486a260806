"""The planner as one function: a question in, a plan with all that an adopter must know out.

Invariants: the command and the Python function are the same search with the same defaults; a
question that contradicts itself is refused before anything is searched.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import UNLIMITED, GpuLimits
from planner.cost.money import DEAREST, highest_price, plan_price, require_prices
from planner.errors import Infeasible, InvalidRequest
from planner.model.workload import Workload
from planner.plans.plan import Plan
from planner.profiles.generator import find_profile
from planner.profiles.profile import Profile
from planner.request import (
    DEFAULT_MAX_TEMPLATES,
    DEFAULT_ROLLOUTS,
    MOST_ROLLOUTS,
    MOST_THREADS,
    Method,
    Objective,
    PlanAnswer,
    PlanRequest,
)
from planner.search.budget import never
from planner.search.driver import search
from planner.search.marginal import marginal_gains
from planner.search.solution_pool import SolutionPool, minimised

WHOLE = (  # numbers that are counts
    *("budget_evaluations", "max_stages", "max_templates", "rollouts", "threads", "seed"),
    "min_holders",
)
LARGEST = {  # beyond these somebody has mistyped
    "budget_s": 10**7,
    "budget_evaluations": 10**10,
    "min_throughput": 10**12,
    "rollouts": MOST_ROLLOUTS,  # they are all in memory at once
    "threads": MOST_THREADS,
}
SAYING_SHARE = 0.25  # of the seconds once more, to say by how much a throughput is missed
WORDS = {"method": get_args(Method), "objective": get_args(Objective)}
POLICY_METHODS = ("auto", "policy")  # those that ask a policy
NEEDS_ZERO = (
    "no plan without ZeRO fits in memory, so replicas share the optimizer's state (stage 1)"
)


def plan(
    workload: Workload,
    composition: Composition,
    profile: Profile | None = None,
    *,
    current: Plan | None = None,
    seed: int = 0,
    min_holders: int = 1,
    budget_evaluations: int | None = None,
    budget_s: float | None = None,
    threads: int | None = None,
    max_stages: int | None = None,
    max_templates: int = DEFAULT_MAX_TEMPLATES,
    method: Method = "auto",
    rollouts: int = DEFAULT_ROLLOUTS,
    policy: Path | None = None,
    objective: Objective = "throughput",
    min_throughput: float | None = None,
    max_price: float | None = None,
    max_gpus: GpuLimits = UNLIMITED,
    allow_ep: bool = True,
    zero_where_needed: bool = False,
    wants_marginal: bool = False,
) -> PlanAnswer:
    """Find the best plan for a set of GPUs.

    The first call on a machine compiles what it needs; `planner.warm_up()` does that before.

    Args:
        workload: what is trained.
        composition: the GPUs that there are.
        profile: all costs; what `heddle plan` would take if not given.
        current: the plan that runs; the answer is never worse while it still fits.
        seed: of the search.
        min_holders: nodes on which each piece of the state must live, where that is possible.
        budget_evaluations: plans after which the search ends.
        budget_s: seconds after which it ends; without any budget two, and on few GPUs 3,000 plans.
        threads: cores of a search that seconds end.
        max_stages: of a template.
        max_templates: of a plan.
        method: which engine searches.
        rollouts: plans that the method `policy` builds.
        policy: folder of a trained policy.
        objective: samples per second, or money per sample.
        min_throughput: samples per second that the plan must reach.
        max_price: money per hour that its nodes may cost.
        max_gpus: that it may use, in all and of a GPU type.
        allow_ep: whether experts may be spread over GPUs.
        zero_where_needed: whether a plan may have ZeRO 1 where none without it fits.
        wants_marginal: whether to say what one more node of each type would add.

    Raises:
        Infeasible: no plan fits; the message names the term that binds, and by how much.
        InvalidRequest: wishes that contradict each other.
        UnprofiledConfiguration: the profile speaks of another workload.
    """
    request = PlanRequest(
        workload=workload,
        composition=composition,
        current=current,
        seed=seed,
        min_holders=min_holders,
        budget_evaluations=budget_evaluations,
        budget_s=budget_s,
        threads=threads,
        max_stages=max_stages,
        max_templates=max_templates,
        method=method,
        rollouts=rollouts,
        policy=policy,
        objective=objective,
        min_throughput=min_throughput,
        max_price=max_price,
        max_gpus=max_gpus,
        allow_ep=allow_ep,
        zero_where_needed=zero_where_needed,
        wants_marginal=wants_marginal,
    )
    return answer(request, find_profile(workload) if profile is None else profile)


def answer(
    request: PlanRequest,
    profile: Profile,
    clock: Callable[[], float] = time.perf_counter,
    interrupted: Callable[[], bool] = never,
) -> PlanAnswer:
    """Answer a request, with the gains of more nodes where it asks for them.

    Args:
        request: what is asked.
        profile: all costs.
        clock: whose seconds the budget counts.
        interrupted: whether to answer now with the best plan so far, and no gains.

    Raises:
        Infeasible: no plan does what is asked; the message says what binds.
        KeyboardInterrupt: it was interrupted before there was a plan.
        InvalidRequest: wishes that contradict each other.
        NoPolicy: the learned policy is asked for, and there is none.
        InvalidPolicy: its files are damaged.
        PolicyMisfit: it was not trained for this question.
        UnprofiledConfiguration: the profile speaks of another workload.
    """
    check_request(request)
    is_open = request.zero_where_needed and not request.workload.zero
    with_zero = replace(request, workload=replace(request.workload, zero=1))
    try:
        if is_open and request.current is not None and request.current.zero:
            asked, found = _either(request, with_zero, profile, clock, interrupted)
        else:
            asked, found = request, _found(request, profile, clock, interrupted)
    except Infeasible:
        if not is_open:
            raise
        asked, found = with_zero, _found(with_zero, profile, clock, interrupted)
        found = replace(found, notes=(*found.notes, NEEDS_ZERO))
    _check_answer(asked, found)
    if request.wants_marginal and not interrupted():
        found = replace(found, marginal=marginal_gains(asked, profile, found, interrupted))
    return found


def _either(
    without: PlanRequest,
    with_zero: PlanRequest,
    profile: Profile,
    clock: Callable[[], float],
    interrupted: Callable[[], bool],
) -> tuple[PlanRequest, PlanAnswer]:
    """The better answer where a plan with ZeRO runs, each of half the seconds.

    Else the running plan would be none that is asked for, and the answer might be worse.

    Raises:
        Infeasible: no plan without ZeRO fits.
    """
    found = [(without, _found(_half_as_long(without), profile, clock, interrupted))]
    with contextlib.suppress(Infeasible):  # then the answer without stands
        shorter = _half_as_long(with_zero)
        found.append((with_zero, _found(shorter, profile, clock, interrupted)))
    pool = SolutionPool(without)

    def rank(answer: PlanAnswer) -> tuple[int, float]:
        per_hour = plan_price(answer.plan, without.composition)
        objective = minimised(without, answer.cost.iteration_s, per_hour)
        return pool.rank_of(answer.holders_min, objective)

    return min(found, key=lambda one: rank(one[1]))


def _half_as_long(request: PlanRequest) -> PlanRequest:
    """The same request for half the seconds, with as many plans; without a limit as it is."""
    if request.most_seconds == math.inf:
        return request
    plans = request.most_evaluations if request.most_evaluations < sys.maxsize else None
    return replace(request, budget_s=request.most_seconds / 2, budget_evaluations=plans)


def _found(
    request: PlanRequest,
    profile: Profile,
    clock: Callable[[], float],
    interrupted: Callable[[], bool],
) -> PlanAnswer:
    try:
        return search(request, profile, clock, interrupted)
    except Infeasible:
        if request.min_throughput is None:
            raise
        # what is too slow is no plan to the engines: without the limit, so that it says by how much
        short = None if request.budget_s is None else request.budget_s * SAYING_SHARE
        asked = replace(request, min_throughput=None, budget_s=short)
        return search(asked, profile, clock, interrupted)


def check_request(request: PlanRequest) -> None:
    """Refuse a request that contradicts itself.

    Raises:
        InvalidRequest: a limit that cannot be meant.
        InvalidComposition: money counts, and a node has no price.
        NoPolicy: the learned policy is asked for, or its folder is named, and there is none.
        InvalidPolicy: its files are damaged.
    """
    check_numbers(request)
    if request.method in POLICY_METHODS:
        require_policy_folder(request.policy)
    if request.method == "policy":  # before anything is loaded
        from planner.policy.weights import find_policy  # only now, as numpy is slow to import

        find_policy(request.workload.model.name, request.policy)
    if request.needs_prices:
        require_prices(request.composition)


def check_numbers(request: PlanRequest) -> None:
    """Refuse a number that cannot be meant.

    Raises:
        InvalidRequest: names it, and what is allowed.
    """
    for name, words in WORDS.items():
        if getattr(request, name) not in words:
            raise InvalidRequest(
                f"{{field}} is {getattr(request, name)!r}; allowed are {', '.join(words)}",
                field=name,
                code="Unknown",
            )
    for name in WHOLE:
        value = getattr(request, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise InvalidRequest(
                f"{{field}} is {value!r}; it must be a whole number", field=name, code="Malformed"
            )
    from planner.estimator.tables import MAX_DEPTH, MAX_TEMPLATES  # only now, as numpy is slow

    room = {"max_stages": MAX_DEPTH, "max_templates": MAX_TEMPLATES}  # of the search
    for name, most in (LARGEST | room).items():
        limit = getattr(request, name)
        if limit is not None and not 0 < limit <= most:
            raise InvalidRequest(
                f"{{field}} is {limit}; it must be above 0 and at most {most:,}",
                field=name,
                code="OutOfRange",
            )
    if request.seed < 0:
        raise InvalidRequest(
            f"{{field}} is {request.seed}; it must be 0 or more", field="seed", code="OutOfRange"
        )
    if request.min_holders < 1:
        raise InvalidRequest(
            f"{{field}} is {request.min_holders}; it must be at least 1",
            field="min_holders",
            code="OutOfRange",
        )
    if request.max_price is not None and not 0 <= request.max_price < DEAREST:
        raise InvalidRequest(
            f"{{field}} is {request.max_price}; it must be from 0 to below {DEAREST:g}",
            field="max_price",
            code="OutOfRange",
        )


def require_policy_folder(folder: Path | None) -> None:
    """Refuse a folder that was named for its policy and holds none.

    Raises:
        NoPolicy: names it.
    """
    if folder is not None:
        from planner.policy.weights import require_files

        require_files(folder)


def _check_answer(request: PlanRequest, found: PlanAnswer) -> None:
    """Refuse an answer that misses what was asked.

    Raises:
        Infeasible: by how much.
    """
    least, reached = request.min_throughput, found.throughput_samples_s
    if least is not None and reached < least:
        raise Infeasible(
            f"throughput binds: the best plan found reaches {reached:.1f} samples/s, asked were at "
            f"least {least:g} ({least - reached:.1f} short); ask for less, add nodes, or give a "
            f"larger budget",
            field="min_throughput",
            code="OutOfRange",
        )
    limits, used = request.max_gpus, found.plan.gpus_by_type
    if not limits.allows(used):
        took = " and ".join(f"{gpus:,} {name}" for name, gpus in sorted(used.items()))
        raise Infeasible(
            f"the limit on GPUs binds: the plan found takes {took}, max_gpus allows {limits}; "
            f"allow more",
            field="max_gpus",
            code="OutOfRange",
        )
    most, costs = request.max_price, plan_price(found.plan, request.composition)
    if most is not None and costs is not None and costs > highest_price(most):
        raise Infeasible(
            f"price binds: the nodes of the cheapest plan found cost {costs:g} an hour, at most "
            f"{most:g} may be spent ({costs - most:g} too much); spend more, or give cheaper nodes",
            field="max_price",
            code="OutOfRange",
        )
