"""The restricted master problem: mix the templates that are known so that most samples are trained.

For a fixed time T every template is a column: the samples that a replica trains in T, and the GPUs
that it uses.  A linear programme mixes the columns with parts of replicas, and its dual prices of
GPUs go to the pricing problem.  Whole replicas that train whole micro-batches make plans: the mix
rounded down and completed, and now and then by branching (restricted master heuristics).
Where money counts, time and money per hour are those of the best plan: mixes of columns must be as
cheap as it (one more row), and train more samples.
Invariant: every plan is priced by the estimator as a whole.
Source: Desaulniers et al., Column Generation (2005); Sadykov et al., Primal heuristics for branch
and price (2019).   Legend: O options, N columns, R rows, T node classes, Q multiples, Z sizes.
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.elite_set import EliteSet
from planner.estimator.objective import SearchLimits, price_plan
from planner.estimator.tables import Floats, Ints, Tables
from planner.estimator.unplaced_plan import most_replicas, new_fillings, new_plan, pipelines_of
from planner.estimator.workspace import new_workspace
from planner.search.column_generation.gradient_limit import GradientLimit
from planner.search.column_generation.incumbent import (
    Bools,
    Incumbent,
    Restriction,
    incumbent_of,
)
from planner.search.column_generation.linear_programme import (
    branch_and_bound,
    maximise,
    round_down,
)
from planner.search.column_generation.pool import (
    add_column,
    new_pool,
    take_fillings,
    uses_of,
    worth_of,
)
from planner.search.column_generation.pricing_problem import Columns

MOST_COLUMNS = 4000  # of the pool
STARTS = 10  # plans whose templates become columns
NODES = 200  # of an integer programme
GAP = 0.002
WHOLE_COLUMNS = 100  # of an integer programme
NEAR = 0.90  # share of its price that a column of an integer programme is worth at least


class RestrictedMaster:
    """The columns of one search, and the plans mixed of them.

    Attributes:
        priced: plans so far.
        pool: the columns.
    """

    def __init__(self, tables: Tables, limits: SearchLimits) -> None:
        """Prepare for one composition.

        Args:
            tables: of it.
            limits: objective and limits.
        """
        self._tables, self._limits = tables, limits
        self._rows = binding_rows(tables)
        self._work, self._fillings, self._plan = new_workspace(tables), new_fillings(), new_plan()
        self.pool = new_pool(MOST_COLUMNS)
        self.priced = 0

    def incumbent(self, elites: EliteSet) -> Incumbent:
        """The best of the elites."""
        return incumbent_of(self._tables, self._limits, elites, self._work)

    def add_plans(self, elites: EliteSet, largest_multiple: int) -> None:
        """Make columns of the templates of the best plans; a full pool starts afresh."""
        if self.pool.number[0] == MOST_COLUMNS:
            self.pool.number[0] = 0
        best = np.argsort(elites.value[: elites.number[0]], kind="stable")[:STARTS]
        pipelines = int(elites.replicas[best[0], : elites.templates[best[0]]].sum())
        for e in best.tolist():
            for k in range(elites.templates[e]):
                multiple = math.gcd(int(elites.replicas[e, k]), largest_multiple)
                options, blocks = elites.options[e, k], elites.blocks[e, k]
                self._add(int(elites.depth[e, k]), options, blocks, multiple, pipelines)

    def add(self, columns: Columns, most: int, pipelines: int) -> int:
        """Add the best columns; returns how many were new, so many at most."""
        added = 0
        for c in np.argsort(-columns.gain[: columns.number[0]], kind="stable").tolist():
            if added == most:
                break
            depth, multiple = int(columns.depth[c]), int(columns.multiple[c])
            added += self._add(depth, columns.options[c], columns.blocks[c], multiple, pipelines)
        return added

    def _add(self, depth: int, options: Ints, blocks: Ints, multiple: int, pipelines: int) -> bool:
        return add_column(
            self._tables,
            self.pool,
            depth,
            options,
            blocks,
            multiple,
            pipelines,
            self._work,
            self._fillings,
        )

    def solve(
        self, elites: EliteSet, incumbent: Incumbent, restriction: Restriction
    ) -> tuple[float, Floats]:
        """Mix the columns with parts of replicas; rounded, the mix becomes a plan as well.

        Returns:
            What the mix trains, a share of the batch, and the dual price of a TP group [O].
        """
        t = self._tables
        parts, whole, uses, room = self._programme(incumbent, restriction)
        columns = best_of_each_use(parts, uses)
        if len(columns) == 0:
            return 0.0, first_prices(t, restriction.allowed)
        amounts, duals = np.zeros(len(columns)), np.zeros(len(room))
        chosen = np.ascontiguousarray(uses[:, columns])
        total = maximise(parts[columns], chosen, room, amounts, duals)
        counts, _ = round_down(whole[columns], chosen, room, amounts)
        self._price(elites, restriction.limit, columns, counts * whole[columns], counts)
        by_row = duals[: len(self._rows)]
        if len(duals) > len(by_row):
            by_row = by_row + duals[-1] * money_row(t, self._rows)
        return float(total) / t.batch, option_prices(t, self._rows, by_row, restriction.allowed)

    def branch(self, elites: EliteSet, incumbent: Incumbent, restriction: Restriction) -> None:
        """Mix whole replicas that train whole micro-batches."""
        _, whole, uses, room = self._programme(incumbent, restriction)
        columns = best_of_each_use(whole, uses)
        if len(columns) == 0 or self._limits.max_templates == 1:
            return
        duals, chosen = np.zeros(len(room)), np.ascontiguousarray(uses[:, columns])
        maximise(whole[columns], chosen, room, np.zeros(len(columns)), duals)
        share = whole[columns] / np.maximum(1e-12, duals @ chosen)
        order = np.argsort(-share, kind="stable")[:WHOLE_COLUMNS]
        near = np.sort(order[share[order] > NEAR])  # in the order of their worth
        columns, chosen = columns[near], np.ascontiguousarray(chosen[:, near])
        counts = branch_and_bound(whole[columns], chosen, room, NODES, GAP)
        self._price(elites, restriction.limit, columns, counts * whole[columns], counts)

    def _programme(
        self, incumbent: Incumbent, restriction: Restriction
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """([N] samples with parts, [N] whole, [R, N] uses, [R] room) of all columns."""
        t, pool = self._tables, self.pool
        count = int(pool.number[0])
        parts, whole = np.zeros(count), np.zeros(count)
        worth_of(t, pool, restriction.horizon_s, restriction.limit, parts, whole)
        uses = np.zeros((len(t.option_tp), count))
        uses_of(t, pool, uses)
        forbidden = uses[~restriction.allowed[t.option_type]].any(axis=0)
        forbidden |= (uses > t.room[:, None]).any(axis=0)
        parts[forbidden] = whole[forbidden] = 0.0
        uses, room = uses[self._rows], t.room[self._rows].astype(np.float64)
        if incumbent.money < math.inf:
            uses = np.vstack([uses, money_row(t, self._rows) @ uses])
            room = np.append(room, incumbent.money)
        return parts, whole, uses, room

    def _price(
        self, elites: EliteSet, limit: GradientLimit, columns: Ints, samples: Floats, counts: Ints
    ) -> None:
        """Price the plan of so many of these columns, filled as the pool has it and once more."""
        order = np.argsort(-samples, kind="stable")
        order = order[counts[order] > 0][: self._limits.max_templates]
        if len(order) == 0:
            return
        t, pool, plan = self._tables, self.pool, self._plan
        taken, number = columns[order], len(order)
        plan.number[0] = number
        plan.depth[:number] = pool.depth[taken]
        plan.options[:number] = pool.options[taken]
        plan.replicas[:number] = counts[order] * pool.multiple[taken]
        plan.pipelines[:number] = pipelines_of(plan)
        is_filled = all(
            take_fillings(pool, c, limit, plan, k) and most_replicas(t, plan, k) >= plan.replicas[k]
            for k, c in enumerate(taken.tolist())
        )
        if is_filled:
            price_plan(t, self._limits, plan, self._work, elites, True)
        price_plan(t, self._limits, plan, self._work, elites, False)
        self.priced += 1 + is_filled


# ---------------------------------------------------------------------- rows and prices


def is_lowest(t: Tables, option: int) -> bool:
    """Whether it is the smallest TP degree of its type, whose row counts all GPUs."""
    return option == 0 or bool(t.option_type[option - 1] != t.option_type[option])


def binding_rows(t: Tables) -> Ints:
    """Options whose room is less than what the next smaller TP degree leaves anyway."""
    rows = range(len(t.room))
    return np.array([r for r in rows if is_lowest(t, r) or t.room[r] < t.room[r - 1]])


def money_row(t: Tables, rows: Ints) -> Floats:
    """[R] money per hour of a GPU in the row that counts all of a type."""
    counts_all = np.array([is_lowest(t, row) for row in rows])
    return np.asarray(t.gpu_price[t.option_type[rows]] * counts_all)


def option_prices(t: Tables, rows: Ints, duals: Floats, allowed: Bools) -> Floats:
    """[O] price of a TP group: it counts in the rows of all degrees up to its own."""
    prices = np.full(len(t.option_tp), np.inf)
    for option, kind in enumerate(t.option_type):
        if allowed[kind]:
            counts = (t.option_type[rows] == kind) & (rows <= option)
            prices[option] = t.option_tp[option] * duals[counts].sum()
    return prices


def first_prices(t: Tables, allowed: Bools) -> Floats:
    """[O] prices in proportion to how fast a type is; all GPUs together cost the batch."""
    lowest = [option for option in range(len(t.room)) if is_lowest(t, option)]
    speed = np.array([(t.sizes / t.block_s[o, :, :, 1].min(axis=1)).max() for o in lowest])
    total = (speed * t.room[lowest])[allowed].sum()
    prices = t.option_tp * speed[t.option_type] * (t.batch / max(total, 1e-300))
    return np.where(allowed[t.option_type], prices, np.inf)


def best_of_each_use(worth: Floats, uses: Floats) -> Ints:
    """Of columns that use the same GPUs the one that is worth most; the best of all first."""
    best: dict[bytes, int] = {}
    for column in np.argsort(-worth, kind="stable").tolist():
        if worth[column] <= 0:
            break
        best.setdefault(uses[:, column].tobytes(), column)
    return np.array(list(best.values()), np.int64)
