"""Which GPUs each of several jobs may plan with: one answer for all of them.

A job has its floor, `minGPUs`, before others have more than theirs: floors are filled by priority,
from free GPUs first, then from whole pods that jobs of lower priority hold above their own floors.
What is free beyond that goes by priority, and among equals to whom it is worth most; a job that
only recommends what it would take (mode Recommend) gets what is left then.  Where GPU types differ,
so many of each type go to a job as bring most together (`targets`); the nodes then follow the same
rule (`table`).
Invariant: no GPU is in two answers; a pod is taken only where the floor that asks for it is
reached by that; none is taken below its owner's floor, and none for more than a floor.  A job that
may not have as many GPUs as its floor is reserved none.  Of another type than it holds a job may
be dealt GPUs beyond those that it may use: its plan uses the better ones.  So may a job on fewer
nodes than its state is to be on (`minHolders`): its plan uses some of each node.
Source: kube-scheduler's priorities; the divisor method of D'Hondt with weights (max-min share).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heapreplace

from heddle_operator.rules.arbitration.claim import Claim
from heddle_operator.rules.arbitration.demand import Allowance, Demand
from heddle_operator.rules.arbitration.table import Table
from heddle_operator.rules.arbitration.targets import divide
from heddle_operator.state.worth import Worth

_PRESUMED_ELASTICITY = 0.9  # of throughput in GPUs, where no planner has said anything


def arbitrate(demands: Iterable[Demand]) -> dict[str, Allowance]:
    """GPUs by node for each job; the same for the same demands in any order."""
    ordered = sorted(demands, key=lambda demand: (-demand.priority, demand.since, demand.job))
    table = Table(ordered)
    start = table.mark()
    for demand in ordered:
        if table.total[demand.job] < demand.least <= demand.most:
            mark = table.mark()
            if not _reach_floor(table, demand):
                table.undo(mark)
    firm = {demand.job: demand.firm for demand in ordered}
    if len(table.gpu_types) > 1:
        _deal_types(table, start, firm)
    _share_rest(table, firm)
    _share_rest(table, {})
    if len(table.gpu_types) > 1:
        _show_types(table)
    _show_nodes(table)
    return {demand.job: table.answer(demand) for demand in ordered}


def _reach_floor(table: Table, demand: Demand) -> bool:
    """Fill the job's floor from what is free, then from jobs of lower priority."""
    while (missing := demand.least - table.total[demand.job]) > 0:
        types = _least_wanted(table, demand)
        if not any(table.give(demand.job, t, missing) for t in types) and not table.take_for(
            demand
        ):
            return False
    return True


def _least_wanted(table: Table, demand: Demand) -> list[str]:
    """The types that the job could use; last those that others cannot do without."""
    waiting = [
        useful_types(other, table.types_of(other.job))
        for other in table.ordered
        if other is not demand and table.total[other.job] < other.least <= other.most
    ]
    types = table.types_of(demand.job)
    useful = useful_types(demand, types)
    return sorted(
        types,
        key=lambda t: (t not in useful, sum(1 / len(row) for row in waiting if t in row), t),
    )


def useful_types(demand: Demand, types: Iterable[str]) -> tuple[str, ...]:
    """Types with a plan within what the job may have; all where no type has one."""
    worth, every = demand.worth, tuple(types)
    if worth is None or len(every) < 2:
        return every
    return tuple(t for t in every if worth.alone(t, demand.most)) or every


def _share_rest(table: Table, limits: Mapping[str, float]) -> None:
    """Deal out what is free: by priority, then to whom a further GPU is worth most.

    Args:
        table: of the floors.
        limits: GPUs of jobs beyond which they get no more this time.
    """
    for priority in dict.fromkeys(demand.priority for demand in table.ordered):
        equals = [
            demand
            for demand in table.ordered
            if demand.priority == priority and table.total[demand.job] >= demand.least
        ]
        turns = [(_share(table, d, 1), index) for index, d in enumerate(equals)]
        heapify(turns)
        while turns:
            _, index = turns[0]
            demand = equals[index]
            most = min(demand.most, limits.get(demand.job, math.inf)) - table.total[demand.job]
            if most > 0 and _give_run(table, demand, most, _next_turn(turns), index):
                heapreplace(turns, (_share(table, demand, 1), index))
            else:
                heappop(turns)


def _share(table: Table, demand: Demand, more: int) -> float:
    return (table.total[demand.job] + more) / demand.weight


def _next_turn(turns: list[tuple[float, int]]) -> tuple[float, int]:
    """The second smallest of a heap."""
    return min(turns[1:3], default=(math.inf, 0))


def _give_run(
    table: Table, demand: Demand, most: float, then: tuple[float, int], index: int
) -> bool:
    """Deal GPUs until it is another job's turn, all on one node; False if there is none."""
    run = int(most) if math.isinf(then[0]) else 1
    while run < most and (_share(table, demand, run + 1), index) < then:
        run += 1
    return any(table.give(demand.job, t, run) for t in _by_worth(table, demand))


def _by_worth(table: Table, demand: Demand) -> list[str]:
    """Types, the one whose run is worth most first."""
    types = table.types_of(demand.job)
    if len(types) < 2:
        return list(types)
    worth = worth_of(demand, types)
    return sorted(types, key=lambda t: (-worth.alone(t, max(1, demand.least)), t))


def _deal_types(table: Table, start: int, limits: Mapping[str, float]) -> None:
    """Deal to all jobs that have their floors the types that bring most together.

    Args:
        table: of the floors; what these were dealt is dealt anew, pods that were taken stay so.
        start: the mark before the floors.
        limits: GPUs of jobs beyond which they get no more this time.
    """
    floors = {d.job: table.held(d.job) for d in table.ordered}
    table.undo(start, keep_taken=True)
    claims, supply = [], table.supply()
    ranks = sorted({-demand.priority for demand in table.ordered})
    for demand in table.ordered:
        if sum(floors[demand.job].values()) < demand.least:
            continue
        held = table.held(demand.job)
        dealt = {t: n - held.get(t, 0) for t, n in floors[demand.job].items()}
        dealt = {t: n for t, n in dealt.items() if n > 0}
        most = int(min(demand.most, limits[demand.job]))
        claim = Claim(
            job=demand.job,
            rank=ranks.index(-demand.priority),
            least=max(0, demand.least - sum(held.values())),
            further=min(demand.further, most),
            most=most,
            worth=worth_of(demand, table.types_of(demand.job)),
            held=held,
            rooms=table.rooms(demand.job),
            dealt=dealt,
        )
        for gpu_type, gpus in dealt.items():
            supply[gpu_type] = supply.get(gpu_type, 0) - gpus
        claims.append(claim)
    divide(claims, supply)
    for gpu_type in table.gpu_types:
        _deal_nodes(table, gpu_type, {claim.job: claim.dealt.get(gpu_type, 0) for claim in claims})


def _deal_nodes(table: Table, gpu_type: str, left: dict[str, int]) -> None:
    """Deal GPUs of one type, in turns of whole runs, larger claims first."""
    order = sorted((job for job in left if left[job]), key=lambda job: -left[job])
    for job in order:
        while left[job] > 0:
            given = table.give(job, gpu_type, left[job])
            if not given:
                break
            left[job] -= given


def _show_types(table: Table) -> None:
    """A job whose worths nobody knows sees free GPUs of all types, to plan with the best."""
    for demand in table.ordered:
        if demand.worth is not None or table.total[demand.job] < demand.least:
            continue
        for gpu_type in table.types_of(demand.job):
            left = min(demand.most, demand.further) - table.held(demand.job).get(gpu_type, 0)
            while left > 0 and (given := table.give(demand.job, gpu_type, int(left))):
                left -= given


def _show_nodes(table: Table) -> None:
    """A job on fewer nodes than its state is to be on sees GPUs of others that nobody wants."""
    for demand in table.ordered:
        if table.total[demand.job] < demand.least:
            continue
        most, held = int(min(demand.most, demand.further)), table.held(demand.job)
        types = sorted(table.types_of(demand.job), key=lambda t: (-held.get(t, 0), t))
        while table.lacks_nodes(demand.job) and any(
            table.give_elsewhere(demand.job, t, most) for t in types
        ):
            pass


def worth_of(demand: Demand, types: Iterable[str]) -> Worth:
    """The planner's word, else that all types are alike, and each further GPU worth a bit less."""
    if demand.worth is not None and demand.worth.curves:
        return demand.worth
    curve = tuple((2**i, float(2**i) ** _PRESUMED_ELASTICITY) for i in range(18))
    return Worth(tuple((gpu_type, curve) for gpu_type in types))
