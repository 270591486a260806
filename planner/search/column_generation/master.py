"""The restricted master problem: mix the templates that are known so that most samples are trained.

For a fixed time T every template is a column: the samples that a replica trains in T, and the GPUs
that it uses.  A linear programme mixes the columns with parts of replicas, and its dual prices of
GPUs go to the pricing problem.  The mix rounded down to whole replicas, and completed, is a plan.
Where money counts, time and money per hour are those of the best plan: mixes of columns must be as
cheap as it (one more row), and train more samples.
Invariant: every plan is priced by the estimator as a whole.
Source: Desaulniers et al., Column Generation (2005).
Legend: O options, N columns, R rows, T node classes, Q multiples, Z sizes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.estimator.objective import SearchLimits, price_plan
from planner.estimator.tables import Floats, Ints, Tables
from planner.estimator.top_k import TopK, load_top
from planner.estimator.unplaced_plan import copy_slot, new_plan, pipelines_of
from planner.estimator.whole_plan import iteration_seconds, price_per_hour
from planner.estimator.workspace import new_workspace
from planner.search.column_generation.linear_programme import maximise, round_down
from planner.search.column_generation.network import room_by_row
from planner.search.column_generation.pool import add_column, uses_of, worth_of
from planner.search.column_generation.pricing_problem import Columns

MOST_COLUMNS = 4000  # of the pool
STARTS = 10  # plans whose templates become columns


class Incumbent(NamedTuple):
    """The best plan, which others must beat: a time always comes from a real plan.

    Attributes:
        seconds: T, of its pipelines; mixes of columns must train the batch in it.
        money: per hour, that others may cost; infinite where it does not count.
        pipelines: replicas of all templates.
    """

    seconds: float
    money: float
    pipelines: int


class RestrictedMaster:
    """The columns of one search, and the plans mixed of them.

    Attributes:
        priced: plans so far.
        pool: the columns.
    """

    def __init__(self, tables: Tables, limits: SearchLimits) -> None:
        """Prepare for one composition."""
        self._tables, self._limits = tables, limits
        self._rows, self._room = binding_rows(tables), room_by_row(tables)
        self._work, self._plan = new_workspace(tables), new_plan()
        self.pool = new_plan(slots=MOST_COLUMNS)
        self.priced = 0

    def incumbent(self, top_k: TopK) -> Incumbent:
        """The best of `top_k`."""
        t, plan, money = self._tables, self._plan, self._limits.most_price
        load_top(top_k, int(np.argmin(top_k.value)), plan)
        if self._limits.counts_money:
            money = min(money, price_per_hour(t, plan))
        iteration_seconds(t, plan, self._work, math.inf)
        return Incumbent(float(self._work.pipelines_s[0]), money, int(pipelines_of(plan)))

    def add_plans(self, top_k: TopK, largest_multiple: int) -> None:
        """Make columns of the templates of the best plans; a full pool starts afresh."""
        if self.pool.number[0] == MOST_COLUMNS:
            self.pool.number[0] = 0
        plan, pipelines = self._plan, 0
        best = np.argsort(top_k.value[: top_k.number[0]], kind="stable")[:STARTS]
        for e in best.tolist():
            load_top(top_k, e, plan)
            pipelines = pipelines or int(pipelines_of(plan))  # of the best one
            for k in range(plan.number[0]):
                plan.replicas[k] = math.gcd(int(plan.replicas[k]), largest_multiple)
                add_column(self._tables, self.pool, plan, k, pipelines, self._work)

    def add(self, columns: Columns, most: int, pipelines: int) -> int:
        """Add the best columns; returns how many were new, so many at most."""
        added, found = 0, columns.plan
        for c in np.argsort(-columns.gain[: found.number[0]], kind="stable").tolist():
            if added == most:
                break
            added += add_column(self._tables, self.pool, found, c, pipelines, self._work)
        return added

    def solve(self, top_k: TopK, incumbent: Incumbent) -> tuple[float, Floats]:
        """Mix the columns with parts of replicas; rounded, the mix becomes a plan as well.

        Returns:
            What the mix trains, a share of the batch, and the dual of a TP group [O].
        """
        t = self._tables
        parts, whole, uses, room = self._programme(incumbent)
        columns = best_of_each_use(parts, uses)
        if len(columns) == 0:
            return 0.0, first_prices(t)
        amounts, duals = np.zeros(len(columns)), np.zeros(len(room))
        chosen = np.ascontiguousarray(uses[:, columns])
        total = maximise(parts[columns], chosen, room, amounts, duals)
        counts = round_down(whole[columns], chosen, room, amounts)
        self._price(top_k, columns, counts * whole[columns], counts)
        by_row = duals[: len(self._rows)]
        if len(duals) > len(by_row):
            by_row = by_row + duals[-1] * money_row(t, self._rows)
        return float(total) / t.batch, option_prices(t, self._rows, by_row)

    def _programme(self, incumbent: Incumbent) -> tuple[Floats, Floats, Floats, Floats]:
        """([N] samples with parts, [N] whole, [R, N] uses, [R] room) of all columns."""
        t, pool = self._tables, self.pool
        count = int(pool.number[0])
        parts, whole, uses = np.zeros(count), np.zeros(count), np.zeros((len(self._room), count))
        worth_of(t, pool, incumbent.seconds, parts, whole)
        uses_of(t, pool, uses)
        uses, room = uses[self._rows], self._room[self._rows].astype(np.float64)
        if incumbent.money < math.inf:
            uses = np.vstack([uses, money_row(t, self._rows) @ uses])
            room = np.append(room, incumbent.money)
        return parts, whole, uses, room

    def _price(self, top_k: TopK, columns: Ints, samples: Floats, counts: Ints) -> None:
        """Evaluate the plan of so many of these columns, filled as in the pool and anew."""
        order = np.argsort(-samples, kind="stable")
        order = order[counts[order] > 0][: self._limits.max_templates]
        if len(order) == 0:
            return
        t, plan = self._tables, self._plan
        plan.number[0] = len(order)
        for k, column in enumerate(columns[order].tolist()):
            copy_slot(self.pool, column, plan, k)
        plan.replicas[: len(order)] *= counts[order]
        plan.pipelines[: len(order)] = pipelines_of(plan)
        for is_filled in (True, False):
            price_plan(t, self._limits, plan, self._work, top_k, is_filled)
        self.priced += 2


# ---------------------------------------------------------------------- rows and prices


def is_lowest(t: Tables, option: int) -> bool:
    """Whether it is the smallest TP degree of its type, whose row counts all GPUs."""
    return option == 0 or bool(t.option_type[option - 1] != t.option_type[option])


def binding_rows(t: Tables) -> Ints:
    """Options whose room is less than what the next smaller TP degree leaves anyway, and limits."""
    rows = [r for r in range(len(t.room)) if is_lowest(t, r) or t.room[r] < t.room[r - 1]]
    return np.array([*rows, *range(len(t.room), len(t.room) + len(t.limit))])


def money_row(t: Tables, rows: Ints) -> Floats:
    """[R] money per hour of a GPU in the row that counts all of a type."""
    counts_all = [row for row in rows if row < len(t.room) and is_lowest(t, row)]
    money = {row: t.gpu_price[t.option_type[row]] for row in counts_all}
    return np.array([money.get(row, 0.0) for row in rows])


def option_prices(t: Tables, rows: Ints, duals: Floats) -> Floats:
    """[O] dual of a TP group: it counts in the rows of degrees up to its own, and of limits."""
    prices = np.zeros(len(t.option_tp))
    rows = rows[: len(rows) - len(t.limit)]
    by_option, by_limit = duals[: len(rows)], duals[len(rows) :]
    for option, kind in enumerate(t.option_type):
        counts = (t.option_type[rows] == kind) & (rows <= option)
        dual = by_option[counts].sum() + by_limit @ t.is_limited[:, kind]
        prices[option] = t.option_tp[option] * dual
    return prices


def first_prices(t: Tables) -> Floats:
    """[O] prices in proportion to how fast a type is; all GPUs together cost the batch.

    Where limits bind, the fastest that fill a limit do.
    """
    lowest = [option for option in range(len(t.room)) if is_lowest(t, option)]
    speed = np.array([(t.sizes / t.block_s[o, :, :, 1].min(axis=1)).max() for o in lowest])
    room = t.room[lowest].copy()
    for most, is_limited in zip(t.limit, t.is_limited[:, t.option_type[lowest]], strict=True):
        left = most
        for kind in np.argsort(-speed * is_limited, kind="stable"):
            room[kind] = min(room[kind], left) if is_limited[kind] else room[kind]
            left -= room[kind] * is_limited[kind]
    total = float((speed * room).sum())
    return np.asarray(t.option_tp * speed[t.option_type] * (t.batch / max(total, 1e-300)))


def best_of_each_use(worth: Floats, uses: Floats) -> Ints:
    """Of columns that use the same GPUs the one that is worth most; the best of all first."""
    best: dict[bytes, int] = {}
    for column in np.argsort(-worth, kind="stable").tolist():
        if worth[column] <= 0:
            break
        best.setdefault(uses[:, column].tobytes(), column)
    return np.array(list(best.values()), np.int64)
