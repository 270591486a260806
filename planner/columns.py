"""Column generation: mix templates by linear programmes whose prices say which template is missing.

For a fixed time T every template is a column: the samples that a replica trains in T, and the GPUs
that it uses.  A linear programme mixes the columns known, its dual prices of GPUs go to a dynamic
programme (`planner.kernel.column_pricing`) that builds the templates worth more than they cost, and
so on.  Branching then mixes whole replicas that train whole micro-batches.  Perturbed prices give
templates that use up remainders.  The time of an iteration always comes from a real plan, the best
so far, because no template is worth anything in a time that is too short.
A layer's gradients are summed at the rate of the slowest NIC that holds it in any template, the
longer the more a GPU holds.  So each scope leaves out the types with the slowest NICs, or keeps
them to some blocks at the ends, bounds the time that gradients are summed, and takes it off T.
Where money counts, time and money per hour are those of the best plan: mixes of columns must be
as cheap as it (one more row), and train more samples.
Invariant: the same pricing, wishes, seed, elites and effort give the same elites, unless the
deadline interferes; every plan is priced by the kernel as a whole.
Source: research on plan search (column generation).   Legend: O options, N columns, R rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from planner.kernel.bag import new_bag, pipelines_of
from planner.kernel.column_pool import (
    add_column,
    add_columns,
    new_pool,
    price_counts,
    uses_of,
    worth_of,
)
from planner.kernel.column_pricing import Columns, new_chains, new_columns, price_columns
from planner.kernel.elites import Elites, load_elite
from planner.kernel.filling import new_bench, new_fillings
from planner.kernel.mixing import best_mix, best_whole_mix, fill_rest
from planner.kernel.moves import Wishes
from planner.kernel.tables import MAX_DEPTH, Floats, Ints
from planner.kernel.whole_plan import price_per_hour
from planner.kernel.zones import Zones
from planner.mixtures import (
    Bools,
    best_of_each_use,
    binding_rows,
    bundles,
    edge_seconds,
    first_prices,
    money_row,
    option_prices,
)
from planner.pricing_tables import Pricing
from planner.scopes import (
    BestPlan,
    Scope,
    all_zones,
    is_alike,
    most_mixed,
    nic_speeds,
    types_of,
    zones_of_plan,
)
from planner.zones import zones_of

GRID = 1.10  # ratio of neighbouring bottlenecks
FIRST_TIMES = 8  # times that are tried where no plan is known, each twice the one before
MOST_COLUMNS = 4000  # of the pool
PER_ROUND = 60  # best columns of a round
ROUNDS = 8  # of prices and columns in one scope, at most
ENOUGH = 1.002  # a round that adds less to the mix
STALE = 3  # such rounds in a row that end the rounds
SMOOTH = 0.5  # share of the prices before in those that are asked next
COARSE, COARSE_ROUNDS = 2, 2  # only every second bottleneck, in the first rounds
SIGMA = 0.35  # of the logarithm of perturbed prices
PERTURBATIONS = 10  # price vectors between two integer programmes
PER_PERTURBATION = 12  # best columns of each
REPEATS = 3  # integer programmes, each with the time of the best plan before
NODES = 400  # of an integer programme
GAP = 0.002
WHOLE_COLUMNS = 100  # of an integer programme
NEAR = 0.90  # share of its price that a column of an integer programme is worth at least
PROMISING, ANY = -0.06, -2.0  # least gain, as a share, of a bottleneck the last time it was tried
SCREENED = 2  # every so many bottlenecks tell what a scope promises
SCREENS = 24  # bottlenecks' columns that come out of it
SCOPES = 3  # that are worth perturbing
CANDIDATES = 2  # scopes that get a mix, of those that promise most
EXPLORED = 16  # scopes that are looked at in a row
GOOD = 1e-3  # gain of a plan
STARTS = 10  # plans whose templates become columns


class ColumnSearch:
    """Finds plans by column generation; what it has learned stays for the next run."""

    def __init__(self, pricing: Pricing, wishes: Wishes, seed: int) -> None:
        """Prepare for one composition.

        Args:
            pricing: supplies the tables.
            wishes: objective and limits.
            seed: of perturbed prices.
        """
        t = pricing.tables
        self._tables, self._wishes = t, wishes
        self._random = np.random.default_rng(seed)
        self._deepest = min(wishes.deepest, t.layers, MAX_DEPTH)
        types, options, sizes = len(t.node_gpus), len(t.option_tp), len(t.sizes)
        self._rows = binding_rows(t)
        self._edge_s = edge_seconds(t)
        self._together = bundles(t)
        shape = (len(self._together), sizes)
        self._stage_s = np.empty((*shape, options, self._deepest, 2, t.dense + 1, t.layers + 1))
        self._is_ready = np.zeros(shape, np.int64)
        self._taus_s = np.zeros(0)
        self._chains = new_chains(self._deepest, t.layers, types)
        self._pool = new_pool(MOST_COLUMNS)
        self._bench, self._fillings = new_bench(t.layers, t.dense), new_fillings()
        self._bag, self._trial = new_bag(), new_bag()
        self._scopes: list[Scope] = []
        self._followed: list[Scope] = []
        self._speeds = nic_speeds(t)
        self.priced = 0

    def run(self, elites: Elites, deadline: Callable[[], bool], effort: int) -> int:
        """Look for plans that are better than the elites; returns how many it priced.

        Args:
            elites: at least one plan; takes the plans found.
            deadline: whether to stop.
            effort: how many times ten perturbed price vectors are tried in each good scope.
        """
        self.priced = 0
        self._find_first(elites, deadline)
        if elites.number[0] == 0:
            return self.priced
        self._start(elites)
        for _ in range(effort):
            if deadline():
                break
            self._deepen(elites, deadline)
            self._explore(elites, deadline)
        return self.priced

    def _deepen(self, elites: Elites, deadline: Callable[[], bool]) -> None:
        """Improve where the best plan stands, as long as that helps, then in the best mixes."""
        while not deadline():
            before = elites.value.min()
            self._follow(elites)
            for scope in self._followed:
                self._converge(elites, scope, deadline)
            if elites.value.min() >= before * (1 - GOOD):
                break
        mixed = sorted((scope for scope in self._scopes if scope.mixed), key=most_mixed)
        others = [one for one in mixed[:SCOPES] if not any(one is f for f in self._followed)]
        for scope in (*self._followed, *others):
            if deadline():
                return
            self._perturb(elites, scope, deadline)
            self._combine(elites, scope, deadline)

    def _converge(self, elites: Elites, scope: Scope, deadline: Callable[[], bool]) -> None:
        """Rounds of prices and columns until the mix gains no more, then whole replicas."""
        stale = 0
        for turn in range(ROUNDS):
            if deadline():
                return
            mixed, prices = scope.mixed, scope.prices
            self._mix(elites, scope)
            stale = stale + 1 if scope.mixed < mixed * ENOUGH else 0
            if turn and (stale == STALE or scope.hoped < scope.mixed * ENOUGH):
                break
            if turn or not scope.rounds:
                prices = SMOOTH * prices + (1 - SMOOTH) * scope.prices
            else:
                prices = scope.prices
            step = COARSE if scope.rounds < COARSE_ROUNDS else 1
            self._add(elites, scope, prices, PER_ROUND, learns=True, step=step)
        self._combine(elites, scope, deadline)

    def _explore(self, elites: Elites, deadline: Callable[[], bool]) -> None:
        """A look at some scopes that were not looked at, and more at those that promise most."""
        followed = {id(scope) for scope in self._followed}
        turn = [scope for scope in self._scopes if id(scope) not in followed]
        for scope in turn[:EXPLORED]:
            if deadline():
                return
            self._mix(elites, scope)
            self._scopes.remove(scope)
            self._scopes.append(scope)
        for scope in sorted(turn[:EXPLORED], key=most_mixed)[:CANDIDATES]:
            if deadline():
                return
            self._converge(elites, scope, deadline)

    def _find_first(self, elites: Elites, deadline: Callable[[], bool]) -> None:
        """Where nothing is known to fit, the cheapest templates in ever longer times."""
        t = self._tables
        every = np.ones(len(t.node_gpus), np.bool_)
        seconds = t.batch * t.layers * float((t.block_s[..., 1].min(axis=(0, 2)) / t.sizes).min())
        seconds /= max(1, t.room.max())
        for _ in range(FIRST_TIMES):
            if elites.number[0] or deadline():
                return
            seconds *= 2
            zones = zones_of(t, t.layers, 0, t.nic[:, 1].max(), t.nic[:, 1].max(), math.inf)
            least_s = t.block_s[:, :, :, 1].min() * math.ceil(t.layers / self._deepest)
            count = 2 + max(0, math.ceil(math.log(max(1.0, seconds / least_s), GRID)))
            self._taus_s = least_s * GRID ** np.arange(count)
            scope = self._scope(every, zones)
            columns = self._columns_of(scope, scope.prices, PER_ROUND, seconds, True, 1)
            self._keep(elites, columns, PER_ROUND, int(self._together[-1]))

    def _start(self, elites: Elites) -> None:
        """Put the templates of the elites into the pool; at first, think of scopes."""
        t = self._tables
        start = self._best(elites)
        for e in np.argsort(elites.value[: elites.number[0]], kind="stable")[:STARTS]:
            load_elite(elites, int(e), self._bag)
            for k in range(self._bag.number[0]):
                add_column(
                    t,
                    self._pool,
                    self._bag.depth[k],
                    self._bag.options[k].copy(),
                    elites.blocks[e, k],
                    math.gcd(int(self._bag.replicas[k]), int(self._together[-1])),
                    start.pipelines,
                    self._bench,
                    self._fillings,
                )
        if not self._scopes:
            least_s = t.block_s[:, :, :, 1].min() * math.ceil(t.layers / self._deepest)
            count = 2 + max(0, math.ceil(math.log(max(1.0, start.seconds / least_s), GRID)))
            self._taus_s = least_s * GRID ** np.arange(count)
            pairs = all_zones(t, self._speeds, start.seconds)
            scopes = [self._scope(allowed, zones) for allowed, zones in pairs]
            self._scopes = [scopes[i] for i in self._random.permutation(len(scopes))]
        self._follow(elites)

    def _follow(self, elites: Elites) -> None:
        """Add the scopes in which the best plan stands itself."""
        best = int(np.argmin(elites.value[: elites.number[0]]))
        used = self._best(elites).types
        self._followed = []
        for zones in zones_of_plan(self._tables, self._speeds, elites, best, used):
            layers = self._tables.layers
            alike = [scope for scope in self._scopes if is_alike(scope.zones, zones, layers)]
            if not alike:
                allowed = self._tables.nic[:, 1] <= self._tables.nic[used, 1].max()
                alike = [self._scope(allowed, zones)]
                self._scopes.extend(alike)
            self._followed.append(alike[0])

    def _scope(self, allowed: Bools, zones: Zones) -> Scope:
        promise = np.full((*self._is_ready.shape, len(self._taus_s)), -1.0)
        return Scope(allowed, zones, promise, first_prices(self._tables, allowed))

    def _perturb(self, elites: Elites, scope: Scope, deadline: Callable[[], bool]) -> None:
        """Templates for other prices, which use up what the best mix leaves."""
        for _ in range(PERTURBATIONS):
            if deadline():
                return
            factors = np.exp(self._random.normal(0.0, SIGMA, len(scope.prices)))
            self._add(elites, scope, scope.prices * factors, PER_PERTURBATION, learns=False)

    def _add(
        self,
        elites: Elites,
        scope: Scope,
        prices: Floats,
        most: int,
        *,
        learns: bool,
        step: int = 1,
    ) -> None:
        """The templates that are worth more than these prices."""
        everything = learns and scope.rounds % 5 == 0
        scope.rounds += learns
        before = self._pool.fillings[: self._pool.number[0]].sum()
        start = self._best(elites)
        columns = self._columns_of(
            scope,
            prices,
            most,
            self._horizon(elites, scope),
            learns,
            step,
            ANY if everything else PROMISING,
        )
        self._keep(elites, columns, most, start.pipelines)
        if learns:
            gain = min(0.99, scope.promise.max())
            known = scope.mixed or 1.0  # the first prices cost the batch
            scope.hoped = min(scope.hoped, known / (1 - gain))
            if step == 1 and self._pool.fillings[: self._pool.number[0]].sum() == before:
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
            self._pool,
            self._bag,
            self._bench,
            self._fillings,
            elites,
        )

    def _best(self, elites: Elites) -> BestPlan:
        best = int(np.argmin(elites.value[: elites.number[0]]))
        load_elite(elites, best, self._bag)
        seconds, money = float(elites.value[best]), math.inf
        if self._wishes.counts_money:
            money = float(price_per_hour(self._tables, self._bag))
            seconds /= money
        return BestPlan(
            seconds,
            min(money, self._wishes.most_price),
            int(pipelines_of(self._bag)),
            types_of(self._tables, self._bag),
        )

    def _horizon(self, elites: Elites, scope: Scope) -> float:
        """T: what pipelines may take to be as fast as the best plan."""
        return max(self._best(elites).seconds - scope.zones.most_s, 1e-9)

    def _worth(self, elites: Elites, scope: Scope) -> tuple[Floats, Floats, Floats, Floats]:
        """([N] samples with parts, [N] whole, [R, N] uses, [R] room) of all columns."""
        t, pool = self._tables, self._pool
        count = int(pool.number[0])
        real, whole = np.zeros(count), np.zeros(count)
        worth_of(t, pool, self._horizon(elites, scope), scope.zones, real, whole)
        uses = np.zeros((len(t.option_tp), count))
        uses_of(t, pool, uses)
        forbidden = uses[~scope.allowed[t.option_type]].any(axis=0)
        real[forbidden] = whole[forbidden] = 0.0
        room = t.room[self._rows].astype(np.float64)
        uses, money = uses[self._rows], self._best(elites).money
        if money < math.inf:
            uses, room = np.vstack([uses, money_row(t, self._rows) @ uses]), np.append(room, money)
        return real, whole, uses, room

    def _mix(self, elites: Elites, scope: Scope) -> None:
        """Mix the columns with parts for new prices; rounded, it becomes a plan as well."""
        t = self._tables
        real, whole, uses, room = self._worth(elites, scope)
        columns = best_of_each_use(real, uses)
        if len(columns) == 0:
            scope.mixed = 0.0
            return
        amounts, duals = np.zeros(len(columns)), np.zeros(len(room))
        total = best_mix(real[columns], uses[:, columns], room, amounts, duals)
        counts = np.floor(amounts + 1e-9).astype(np.int64)
        fill_rest(room, uses[:, columns], whole[columns], counts)
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
            self._pool,
            columns[order],
            counts[order],
            scope.zones,
            self._bag,
            self._trial,
            self._bench,
            elites,
        )

    def _combine(self, elites: Elites, scope: Scope, deadline: Callable[[], bool]) -> None:
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
            best_mix(whole[columns], uses[:, columns], room, np.zeros(len(columns)), duals)
            share = whole[columns] / np.maximum(1e-12, duals @ uses[:, columns])
            order = np.argsort(-share, kind="stable")[:WHOLE_COLUMNS]
            columns = columns[order[share[order] > NEAR]]
            counts = np.zeros(len(columns), np.int64)
            best_whole_mix(whole[columns], uses[:, columns], room, NODES, GAP, counts)
            self._price(elites, scope, columns, counts, whole)
            if elites.value.min() >= before * (1 - 1e-9):
                return
