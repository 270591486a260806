"""The columns of one search, and what is made of them: prices, further columns, and plans.

For a fixed time T every template is a column: the samples that a replica trains in T, and the GPUs
that it uses.  A linear programme mixes the columns known, its dual prices of GPUs go to a dynamic
programme (`planner.search.column_generation.column_pricing`) that builds the templates worth more
than they cost. Branching mixes whole replicas that train whole micro-batches.  The time of an
iteration always comes from a real plan, the best so far, because no template is worth anything in a
time that is too short.
Where money counts, time and money per hour are those of the best plan: mixes of columns must be
as cheap as it (one more row), and train more samples.
Invariant: every plan is priced by the kernel as a whole.
Source: research on plan search (column generation).   Legend: O options, N columns, R rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from planner.estimator.bag import new_bag, new_fillings
from planner.estimator.bench import new_bench
from planner.estimator.elites import Elites, load_elite
from planner.estimator.fill.zone_limits import Zones
from planner.estimator.gradient_sync import plan_sync_seconds
from planner.estimator.objective import Wishes
from planner.estimator.tables import MAX_DEPTH, Floats, Ints, Tables
from planner.estimator.whole_plan import price_per_hour
from planner.search.column_generation.best_columns import Columns, new_columns
from planner.search.column_generation.chains import new_chains
from planner.search.column_generation.column_pool import (
    add_columns,
    new_pool,
    price_counts,
    uses_of,
    worth_of,
)
from planner.search.column_generation.column_pricing import price_columns
from planner.search.column_generation.mixing import best_mix, best_whole_mix, fill_rest
from planner.search.column_generation.mixtures import (
    Bools,
    best_of_each_use,
    binding_rows,
    bundles,
    edge_seconds,
    first_prices,
    money_row,
    option_prices,
)
from planner.search.column_generation.scopes import (
    BestPlan,
    Scope,
    pipeline_room,
    scope_sync_seconds,
    types_of,
)

GRID = 1.10  # ratio of neighbouring bottlenecks
MOST_COLUMNS = 4000  # of the pool
STARTS = 10  # plans whose templates become columns
REPEATS = 3  # integer programmes, each with the time of the best plan before
NODES = 400  # of an integer programme
GAP = 0.002
WHOLE_COLUMNS = 100  # of an integer programme
NEAR = 0.90  # share of its price that a column of an integer programme is worth at least
PROMISING, ANY = -0.06, -2.0  # least gain, as a share, of a bottleneck the last time it was tried


class ColumnMixer:
    """Columns of all scopes, and plans mixed of them.

    Attributes:
        priced: plans so far.
        pool: the columns.
        largest_bundle: most replicas that some tiling of experts asks for at once.
    """

    def __init__(self, tables: Tables, wishes: Wishes) -> None:
        """Prepare for one composition.

        Args:
            tables: of it.
            wishes: objective and limits.
        """
        t = tables
        self._tables, self._wishes = t, wishes
        self._deepest = min(wishes.deepest, t.layers, MAX_DEPTH)
        types, options, sizes = len(t.node_gpus), len(t.option_tp), len(t.sizes)
        self._rows = binding_rows(t)
        self._edge_s = edge_seconds(t)
        self._together = bundles(t)
        shape = (len(self._together), sizes)
        self._stage_s = np.empty((*shape, options, self._deepest, 2, t.dense + 1, t.layers + 1))
        self._is_ready = np.zeros(shape, np.int64)
        self._taus_s = np.zeros(0)
        self._scarcities = np.zeros((*shape, options))
        self._chains = new_chains(self._deepest, t.layers, types, options)
        self.pool = new_pool(MOST_COLUMNS)
        self._bench, self._fillings = new_bench(t), new_fillings()
        self._bag, self._trial = new_bag(), new_bag()
        self._known: BestPlan | None = None
        self.largest_bundle = int(self._together[-1])
        self.priced = 0

    def take_grid(self, seconds: float) -> None:
        """Look at bottlenecks up to so many seconds; scopes made before are of no use then."""
        t = self._tables
        least_s = t.block_s[:, :, :, 1].min() * math.ceil(t.layers / self._deepest)
        count = 2 + max(0, math.ceil(math.log(max(1.0, seconds / least_s), GRID)))
        self._taus_s = least_s * GRID ** np.arange(count)

    def scope(self, allowed: Bools, zones: Zones) -> Scope:
        """A new scope with first prices."""
        promise = np.full((*self._is_ready.shape, len(self._taus_s)), -1.0)
        return Scope(allowed, zones, promise, first_prices(self._tables, allowed))

    def take_plans(self, elites: Elites) -> None:
        """Make columns of the templates of the best plans; a full pool starts afresh."""
        if self.pool.number[0] == MOST_COLUMNS:
            self.pool.number[0] = 0
        rows = np.argsort(elites.value[: elites.number[0]], kind="stable")[:STARTS]
        pairs = [(e, k) for e in rows.tolist() for k in range(elites.templates[e])]
        columns = new_columns(len(pairs))
        columns.number[0] = len(pairs)
        for row, (e, k) in enumerate(pairs):
            columns.gain[row] = -row
            columns.together[row] = math.gcd(int(elites.replicas[e, k]), self.largest_bundle)
            columns.depth[row] = elites.depth[e, k]
            columns.options[row] = elites.options[e, k]
            columns.blocks[row] = elites.blocks[e, k]
        self._keep(elites, columns, len(pairs), self.best(elites).pipelines)

    def take_uniform(self, elites: Elites) -> None:
        """Make columns of every template whose stages are all alike."""
        t = self._tables
        pairs = [
            (option, depth)
            for option, tp in enumerate(t.option_tp.tolist())
            for depth in range(1, min(self._deepest, int(t.room[option]) // tp) + 1)
        ]
        columns = new_columns(len(pairs))
        columns.number[0] = len(pairs)
        for row, (option, depth) in enumerate(pairs):
            columns.gain[row] = -row
            columns.together[row] = 1
            columns.depth[row] = depth
            columns.options[row, :depth] = option
            columns.blocks[row, :depth] = t.layers // depth
            columns.blocks[row, : t.layers % depth] += 1
        self._keep(elites, columns, len(pairs), self.best(elites).pipelines)

    def find(self, elites: Elites, scope: Scope, seconds: float, most: int) -> None:
        """Columns for iterations of that time, where no plan is known."""
        columns = self._columns_of(scope, scope.prices, most, seconds, True, 1)
        self._keep(elites, columns, most, self.largest_bundle)

    def add(
        self,
        elites: Elites,
        scope: Scope,
        prices: Floats,
        most: int,
        *,
        learns: bool,
        step: int = 1,
        cells: int = 10**9,
    ) -> None:
        """The templates that are worth more than these prices.

        Args:
            elites: best plans.
            scope: to look in.
            prices: [O] of TP groups.
            most: columns.
            learns: whether what each bottleneck promises is kept.
            step: every so many of the bottlenecks.
            cells: most bottlenecks, those that promise most.
        """
        everything = learns and scope.rounds % 5 == 0
        least = ANY if everything else PROMISING
        if cells < scope.promise.size and not everything:
            least = max(least, float(np.partition(scope.promise, -cells, axis=None)[-cells]))
        scope.rounds += learns
        before = self.pool.fillings[: self.pool.number[0]].sum()
        start = self.best(elites)
        columns = self._columns_of(
            scope,
            prices,
            most,
            self._horizon(elites, scope),
            learns,
            step,
            least,
        )
        self._keep(elites, columns, most, start.pipelines)
        if learns:
            gain = min(0.99, scope.promise.max())
            known = scope.mixed or 1.0  # the first prices cost the batch
            scope.hoped = min(scope.hoped, known / (1 - gain))
            if step == 1 and self.pool.fillings[: self.pool.number[0]].sum() == before:
                scope.hoped = scope.mixed  # nothing more to be found here

    def _columns_of(
        self,
        scope: Scope,
        prices: Floats,
        most: int,
        horizon_s: float,
        learns: bool,
        step: int,
        least_promise: float = ANY,
    ) -> Columns:
        columns = new_columns(2 * most)
        price_columns(
            self._tables,
            horizon_s,
            prices,
            pipeline_room(self._tables, scope),
            self._edge_s,
            scope.zones,
            self._taus_s,
            self._together,
            self._stage_s,
            self._is_ready,
            scope.promise,
            least_promise,
            learns,
            step,
            self._scarcities,
            self._chains,
            columns,
        )
        return columns

    def _keep(self, elites: Elites, columns: Columns, most: int, pipelines: int) -> None:
        self.priced += add_columns(
            self._tables,
            self._wishes,
            columns,
            most,
            pipelines,
            self.pool,
            self._bag,
            self._bench,
            self._fillings,
            elites,
        )

    def best(self, elites: Elites) -> BestPlan:
        """What scopes need to know of the best plan."""
        best = int(np.argmin(elites.value[: elites.number[0]]))
        value = float(elites.value[best])
        if self._known is not None and self._known.value == value:
            return self._known
        seconds, money = value, math.inf
        load_elite(elites, best, self._bag)
        work = self._bench.price
        sync_s = plan_sync_seconds(self._tables, self._bag, work)
        if self._wishes.counts_money:
            money = float(price_per_hour(self._tables, self._bag))
            seconds /= max(money, self._wishes.least_price)
        self._known = BestPlan(
            value,
            seconds,
            min(money, self._wishes.most_price),
            int(elites.replicas[best, : elites.templates[best]].sum()),
            types_of(self._tables, elites, best),
            sync_s,
            work.nic_s.copy(),
        )
        return self._known

    def _horizon(self, elites: Elites, scope: Scope) -> float:
        """T: what pipelines may take to be as fast as the best plan."""
        best = self.best(elites)
        return max(best.seconds - scope_sync_seconds(self._tables, scope, best), 1e-9)

    def _worth(self, elites: Elites, scope: Scope) -> tuple[Floats, Floats, Floats, Floats]:
        """([N] samples with parts, [N] whole, [R, N] uses, [R] room) of all columns."""
        t, pool = self._tables, self.pool
        count = int(pool.number[0])
        real, whole = np.zeros(count), np.zeros(count)
        worth_of(t, pool, self._horizon(elites, scope), scope.zones, real, whole)
        uses = np.zeros((len(t.option_tp), count))
        uses_of(t, pool, uses)
        forbidden = uses[~scope.allowed[t.option_type]].any(axis=0)
        alone = pipeline_room(t, scope)
        forbidden |= (uses > np.outer(alone, pool.together[:count])).any(axis=0)
        real[forbidden] = whole[forbidden] = 0.0
        room = t.room[self._rows].astype(np.float64)
        uses, money = uses[self._rows], self.best(elites).money
        if money < math.inf:
            uses, room = np.vstack([uses, money_row(t, self._rows) @ uses]), np.append(room, money)
        return real, whole, uses, room

    def mix(self, elites: Elites, scope: Scope) -> None:
        """Mix the columns with parts for new prices; rounded, it becomes a plan as well."""
        t = self._tables
        real, whole, uses, room = self._worth(elites, scope)
        columns = best_of_each_use(real, uses)
        if len(columns) == 0:
            scope.mixed = 0.0
            return
        amounts, duals = np.zeros(len(columns)), np.zeros(len(room))
        total = best_mix(
            real[columns], np.ascontiguousarray(uses[:, columns]), room, amounts, duals
        )
        counts = np.floor(amounts + 1e-9).astype(np.int64)
        fill_rest(room, np.ascontiguousarray(uses[:, columns]), whole[columns], counts)
        self._price(elites, scope, columns, counts, whole)
        scope.mixed = float(total) / t.batch
        by_row = duals[: len(self._rows)]
        if len(duals) > len(by_row):
            by_row = by_row + duals[-1] * money_row(t, self._rows)
        scope.prices = option_prices(t, self._rows, by_row, scope.allowed)

    def _price(
        self, elites: Elites, scope: Scope, columns: Ints, counts: Ints, worth: Floats
    ) -> None:
        """Price the plan of so many bundles of these columns."""
        taken = np.flatnonzero(counts)
        if len(taken) == 0:
            return
        order = taken[np.argsort(-(counts * worth[columns])[taken], kind="stable")]
        self.priced += price_counts(
            self._tables,
            self._wishes,
            self.pool,
            columns[order],
            counts[order],
            scope.zones,
            self._bag,
            self._trial,
            self._bench,
            elites,
        )

    def combine(self, elites: Elites, scope: Scope, deadline: Callable[[], bool]) -> None:
        """Mix whole replicas, each time within the time of the best plan before."""
        for _ in range(REPEATS):
            if deadline() or self._wishes.max_templates == 1:
                return
            before = elites.value.min()
            _, whole, uses, room = self._worth(elites, scope)
            columns = best_of_each_use(whole, uses)
            if len(columns) == 0:
                return
            duals = np.zeros(len(room))
            best_mix(
                whole[columns],
                np.ascontiguousarray(uses[:, columns]),
                room,
                np.zeros(len(columns)),
                duals,
            )
            share = whole[columns] / np.maximum(
                1e-12, duals @ np.ascontiguousarray(uses[:, columns])
            )
            order = np.argsort(-share, kind="stable")[:WHOLE_COLUMNS]
            columns = columns[order[share[order] > NEAR]]
            counts = np.zeros(len(columns), np.int64)
            best_whole_mix(
                whole[columns], np.ascontiguousarray(uses[:, columns]), room, NODES, GAP, counts
            )
            self._price(elites, scope, columns, counts, whole)
            if elites.value.min() >= before * (1 - 1e-9):
                return
