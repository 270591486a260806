"""Column generation: where to look for better mixes of templates, and in which order.

Rounds of prices and columns (`planner.search.column_generation.column_mixer`) are made in one scope
after the other.  A layer's gradients are summed at the rate of the slowest NIC that holds it in any
template, the longer the more a GPU holds.  So each scope leaves out the types with the slowest
NICs, or keeps them to some blocks at the ends, bounds the time that gradients are summed, and takes
it off T. Most is gained where the best plan stands itself, so that its scopes come first, again
whenever there is a better plan; others are tried with the columns that are known already.  Where
neither helps any more, perturbed prices give templates that use up remainders.
Invariant: the same pricing, wishes, seed, elites and effort give the same elites, unless the
deadline interferes.
Source: research on plan search (column generation); smoothed prices are Wentges's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from planner.estimator.build_tables import Pricing
from planner.estimator.elites import Elites
from planner.estimator.objective import Wishes
from planner.search.column_generation.column_mixer import ColumnMixer
from planner.search.column_generation.scopes import (
    Scope,
    all_zones,
    is_alike,
    most_mixed,
    nic_speeds,
    zones_of_plan,
)
from planner.search.column_generation.zones import zones_of

FIRST_TIMES = 8  # times that are tried where no plan is known, each twice the one before
PER_ROUND = 60  # best columns of a round
CELLS = 64  # bottlenecks of a round, those that promised most; now and then all
ROUNDS = 8  # of prices and columns in one scope, at most
ENOUGH = 1.002  # a round that adds less to the mix
STALE = 3  # such rounds in a row that end the rounds
SMOOTH = 0.5  # share of the prices before in those that are asked next
COARSE, COARSE_ROUNDS = 2, 2  # only every second bottleneck, in the first rounds
SIGMA = 0.35  # of the logarithm of perturbed prices
PERTURBATIONS = 10  # price vectors between two integer programmes
PER_PERTURBATION = 12  # best columns of each
PERTURBED_CELLS = 24  # bottlenecks of each
SCOPES = 3  # that are worth perturbing
EXPLORED = 16  # scopes that are looked at in a row
CANDIDATES = 2  # of them that get rounds, those with the best mixes
GOOD = 1e-3  # gain of a plan that is worth a second look around


class ColumnSearch:
    """Finds plans by column generation; what it has learned stays for the next run.

    Attributes:
        mixer: holds the columns.
    """

    def __init__(self, pricing: Pricing, wishes: Wishes, seed: int) -> None:
        """Prepare for one composition.

        Args:
            pricing: supplies the tables.
            wishes: objective and limits.
            seed: of perturbed prices.
        """
        self._tables = pricing.tables
        self.mixer = ColumnMixer(pricing.tables, wishes)
        self._random = np.random.default_rng(seed)
        self._scopes: list[Scope] = []
        self._followed: list[Scope] = []
        self._speeds = nic_speeds(pricing.tables)

    @property
    def priced(self) -> int:
        """Plans so far."""
        return self.mixer.priced

    def run(self, elites: Elites, deadline: Callable[[], bool], effort: int) -> None:
        """Look for plans that are better than the elites.

        Args:
            elites: takes the plans found; may be empty.
            deadline: whether to stop.
            effort: how many times others are explored, and the best scopes perturbed.
        """
        self._find_first(elites, deadline)
        if elites.number[0] == 0:
            return
        self._start(elites)
        for _ in range(effort):
            if deadline():
                return
            self._deepen(elites, deadline)
            before = elites.value.min()
            self._explore(elites, deadline)
            if elites.value.min() >= before * (1 - GOOD):
                self._vary(elites, deadline)

    def _deepen(self, elites: Elites, deadline: Callable[[], bool]) -> None:
        """Improve where the best plan stands, as long as that helps."""
        while not deadline():
            before = elites.value.min()
            self._follow(elites)
            for scope in self._followed:
                self._converge(elites, scope, deadline)
            if elites.value.min() >= before * (1 - GOOD):
                break

    def _vary(self, elites: Elites, deadline: Callable[[], bool]) -> None:
        """Perturb prices where the best plan stands, and in the best mixes."""
        mixed = sorted((scope for scope in self._scopes if scope.mixed), key=most_mixed)
        others = [scope for scope in mixed[:SCOPES] if scope not in self._followed]
        for scope in (*self._followed, *others):
            if deadline():
                return
            self._perturb(elites, scope, deadline)
            self.mixer.combine(elites, scope, deadline)

    def _converge(self, elites: Elites, scope: Scope, deadline: Callable[[], bool]) -> None:
        """Rounds of prices and columns until the mix gains no more, then whole replicas."""
        stale = 0
        for turn in range(ROUNDS):
            if deadline():
                return
            mixed, prices = scope.mixed, scope.prices
            self.mixer.mix(elites, scope)
            stale = stale + 1 if scope.mixed < mixed * ENOUGH else 0
            if turn and (stale == STALE or scope.hoped < scope.mixed * ENOUGH):
                break
            if turn or not scope.rounds:
                prices = SMOOTH * prices + (1 - SMOOTH) * scope.prices
            else:
                prices = scope.prices
            step = COARSE if scope.rounds < COARSE_ROUNDS else 1
            self.mixer.add(elites, scope, prices, PER_ROUND, learns=True, step=step, cells=CELLS)
        self.mixer.combine(elites, scope, deadline)

    def _explore(self, elites: Elites, deadline: Callable[[], bool]) -> None:
        """Mix what is known in some other scopes, and go on in the best of them."""
        others = [scope for scope in self._scopes if scope not in self._followed][:EXPLORED]
        for scope in others:
            if deadline():
                return
            self.mixer.mix(elites, scope)
            self._scopes.remove(scope)  # its next turn comes after all others
            self._scopes.append(scope)
        for scope in sorted(others, key=most_mixed)[:CANDIDATES]:
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
            self.mixer.take_grid(seconds)
            self.mixer.find(elites, self.mixer.scope(every, zones), seconds, PER_ROUND)

    def _start(self, elites: Elites) -> None:
        """Put the templates of the elites into the pool; at first, think of scopes."""
        self.mixer.take_plans(elites)
        if not self._scopes:
            seconds = self.mixer.best(elites).seconds
            self.mixer.take_grid(seconds)
            self.mixer.take_uniform(elites)
            pairs = all_zones(self._tables, self._speeds, seconds)
            scopes = [self.mixer.scope(allowed, zones) for allowed, zones in pairs]
            self._scopes = [scopes[i] for i in self._random.permutation(len(scopes))]

    def _follow(self, elites: Elites) -> None:
        """Find or add the scopes in which the best plan stands itself."""
        t = self._tables
        best = int(np.argmin(elites.value[: elites.number[0]]))
        plan = self.mixer.best(elites)
        used = plan.types
        self._followed = []
        for zones in zones_of_plan(t, self._speeds, elites, best, used):
            alike = [
                scope
                for scope in self._scopes
                if scope.nic_s and is_alike(scope.zones, zones, t.layers)
            ]
            if not alike:
                allowed = t.nic[:, 1] <= t.nic[used, 1].max()
                alike = [self.mixer.scope(allowed, zones)]
                self._scopes.extend(alike)
            alike[0].summed = plan.sync_s / alike[0].zones.most_s if alike[0].zones.most_s else 0.0
            alike[0].nic_s = float(plan.nic_s[used].max())
            self._followed.append(alike[0])

    def _perturb(self, elites: Elites, scope: Scope, deadline: Callable[[], bool]) -> None:
        """Templates for other prices, which use up what the best mix leaves."""
        for _ in range(PERTURBATIONS):
            if deadline():
                return
            factors = np.exp(self._random.normal(0.0, SIGMA, len(scope.prices)))
            self.mixer.add(
                elites,
                scope,
                scope.prices * factors,
                PER_PERTURBATION,
                learns=False,
                cells=PERTURBED_CELLS,
            )
