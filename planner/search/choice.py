"""Of all plans that a search has found, the one that it answers, and what must be said of it.

With a current plan, plans within half a per cent count as equally good, and the one that moves the
fewest bytes is taken.
Invariant: the answer is never slower than the current plan while that still fits (unless it puts
every piece on more of the nodes that were asked for).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from planner.plans.movement import bytes_to_move
from planner.profiles.profile import Profile
from planner.request import PlanRequest
from planner.search.budget import never
from planner.search.candidate import Candidate, Evaluator
from planner.search.solution_pool import NEAR_RATIO, SolutionPool
from planner.wording import counted

FINALISTS = 32  # plans that are placed again to move fewer bytes


def fewest_bytes(
    pool: SolutionPool,
    evaluator: Evaluator,
    current: Candidate | None,
    is_late: Callable[[], bool] = never,
) -> Candidate:
    """Of the plans within half a per cent, the one that moves fewest bytes.

    The pool has a best plan; `current` is the plan that runs, if it still fits.  The best one is
    placed again in any case, each other one while it is not late.
    """
    request, before = pool.request, pool.request.current
    assert pool.best is not None
    assert before is not None
    holders, best = pool.rank(pool.best)
    limit = best * NEAR_RATIO
    if current is not None and pool.rank(current)[0] == holders:
        limit = min(limit, pool.objective(current))
    near = [c for c in pool.found if pool.rank(c) <= (holders, limit)]
    near = sorted(near, key=pool.rank)[:FINALISTS]
    for index, candidate in enumerate(tuple(near)):
        if index and is_late():
            break
        if candidate.unplaced is not None:
            kept = evaluator.placed(candidate.unplaced, before)
            near += [one for one in kept if pool.rank(one) <= (holders, limit)]
    model = request.workload.model
    bytes_of = {id(c): bytes_to_move(model, before, c.plan) for c in near}
    return min(near, key=lambda c: (bytes_of[id(c)], pool.objective(c)))


def notes_of(request: PlanRequest, profile: Profile, chosen: Candidate) -> Iterator[str]:
    """Wishes that the plan does not grant, a sentence each."""
    asked, nodes = request.min_holders, request.composition.nodes
    allowed = request.max_gpus.allowed(request.composition)
    composition, batch = request.composition, request.workload.global_batch
    num_nodes = composition.num_nodes
    smallest = min((b for t in composition.gpu_types for b in profile.micro_batches(t)), default=1)
    if chosen.holders < asked:
        where = (
            f"the composition has {counted(num_nodes, 'node')}"
            if num_nodes < asked
            else f"it may use {counted(allowed, 'GPU')}; raise max_gpus"
            if allowed < asked
            else f"batch {batch} allows {counted(batch // smallest, 'replica')}; raise the batch"
            if batch // smallest < asked
            else "with ZeRO 1 each piece of the state has one owner in a template; turn ZeRO off"
            if request.workload.zero
            else "no plan that reaches it was found, mostly because none fits in memory"
        )
        yield (
            f"every piece of the state should live on {asked} nodes, "
            f"this plan reaches {chosen.holders}: {where}"
        )
    current = request.current
    if current and current.zero != request.workload.zero and not request.zero_where_needed:
        yield (
            f"the running plan has ZeRO {current.zero}, asked is ZeRO {request.workload.zero}: "
            "it does not count, and may be faster"
        )
    if chosen.plan.zero and all(one.replicas == 1 for one in chosen.plan.templates):
        yield "ZeRO 1 saves nothing here, because each template has one replica"
    unknown = sorted({n.gpu_type for n in nodes} - set(profile.types))
    if unknown:
        yield f"GPU type {unknown[0]!r} has no profile for this model; its nodes stay idle"
