"""Column generation: rounds of dual prices and new templates, and whole plans made of them.

The restricted master problem (`master`) prices GPUs, the pricing problem (`pricing_problem`) finds
the templates that are worth more than their GPUs cost, until there are none.  Whoever may sum
gradients for longer has less time T left for pipelines, so that plans fall into regions.  Most is
gained where the best plan stands itself, and a plan that is better leads on to others; then other
regions have their turn, and perturbed prices give templates that use up remainders.
Invariant: the same pricing, limits, seed, elites and effort give the same elites, unless the
deadline interferes.
Source: Gilmore and Gomory, A linear programming approach to the cutting-stock problem (1961);
smoothed prices are Wentges's (1997).   Legend: O options, Q multiples, Z sizes, G bottlenecks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.estimator.build_tables import Pricing
from planner.estimator.elite_set import EliteSet
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import Floats, Tables
from planner.search.column_generation.gradient_limit import gradient_limit
from planner.search.column_generation.incumbent import Incumbent, Restriction, restricted
from planner.search.column_generation.master import RestrictedMaster, first_prices
from planner.search.column_generation.pricing_problem import (
    new_columns,
    new_problem,
    price_columns,
)

FIRST_TIMES = 8  # times that are tried where no plan is known, each twice the one before
PER_ROUND = 60  # best columns of a round
BOTTLENECKS = 32  # of a round, those that gained most the last time
PROMISING = -0.06  # least gain, as a share, of these; all are tried where none gained so much
ROUNDS = 8  # of prices and columns, at most
ENOUGH = 1.002  # a round that adds less to the mix
STALE = 2  # such rounds in a row that end the rounds
PERTURBATIONS = 5  # price vectors between two integer programmes
SIGMA = 0.35  # of the logarithm of perturbed prices
SMOOTH = 0.5  # share of the prices before in those that are asked next
GOOD = 1e-3  # gain of a plan that is worth a second look around
APART = 2.5  # NICs that differ by less count as equally slow
SUM_SHARES = (0.02, 0.06, 0.14, 0.3)  # of an iteration that gradients may take


@dataclass(slots=True, eq=False)
class Region:
    """Plans with the same slowest NIC and gradient sums about as long, and what is known of them.

    Attributes:
        nic_s: seconds per byte of the slowest NIC; 0: as in the best plan.
        share: of an iteration, that the longest gradient sum takes; 0: as in the best plan.
        gain: [Q, Z, G] of `price_columns`.
        prices: [O] of TP groups, the last.
        rounds: so far.
        mixed: samples of the last mix, a share of the batch.
    """

    nic_s: float
    share: float
    gain: Floats
    prices: Floats
    rounds: int = 0
    mixed: float = 0.0


class ColumnSearch:
    """Finds plans by column generation; what it has learned stays for the next run.

    Attributes:
        master: holds the columns.
    """

    def __init__(self, pricing: Pricing, limits: SearchLimits, seed: int) -> None:
        """Prepare for one composition.

        Args:
            pricing: supplies the tables.
            limits: objective and limits.
            seed: of the order in which other regions are explored, and of perturbed prices.
        """
        t = pricing.tables
        self._tables = t
        self.master = RestrictedMaster(t, limits)
        self._problem = new_problem(t, limits.deepest)
        self._near = self._region(0.0, 0.0)
        others = [self._region(nic_s, share) for nic_s in nic_speeds(t) for share in SUM_SHARES]
        self._random = np.random.default_rng(seed)
        self._random.shuffle(others)
        self._others = others

    @property
    def priced(self) -> int:
        """Plans so far."""
        return self.master.priced

    def run(self, elites: EliteSet, deadline: Callable[[], bool], effort: int) -> None:
        """Look for plans that are better than the elites.

        Args:
            elites: takes the plans found; may be empty.
            deadline: whether to stop.
            effort: how many times other regions than that of the best plan are explored, and
                perturbed prices tried.
        """
        if elites.number[0] == 0:
            self._find_first(elites, deadline)
        if elites.number[0] == 0:
            return
        self.master.add_plans(elites, int(self._problem.multiples[-1]))
        region, left = self._near, effort * len(self._others)
        while left >= 0 and not deadline():
            before = elites.value.min()
            self._converge(elites, region, deadline)
            region = self._near
            if elites.value.min() >= before * (1 - GOOD):
                region, left = self._others.pop(0), left - 1
                self._others.append(region)
        for _ in range(effort):
            self._perturb(elites, deadline)

    def _find_first(self, elites: EliteSet, deadline: Callable[[], bool]) -> None:
        """Where nothing is known to fit, mixes of the cheapest templates in ever longer times."""
        t, region = self._tables, self._region(0.0, 0.0)
        seconds = t.batch * t.layers * float((t.block_s[..., 1].min(axis=(0, 2)) / t.sizes).min())
        seconds /= max(1, t.room.max())
        for _ in range(FIRST_TIMES):
            if elites.number[0] or deadline():
                return
            seconds *= 2
            slowest = float(t.nic[:, 1].max())
            known = Incumbent(seconds, math.inf, 1, slowest, math.inf, 0.0)
            everything = Restriction(
                seconds, np.ones(len(t.node_gpus), np.bool_), gradient_limit(t, slowest, math.inf)
            )
            region.prices = first_prices(t, everything.allowed)
            self._generate(known, everything, region, -math.inf)
            self.master.solve(elites, known, everything)

    def _converge(self, elites: EliteSet, region: Region, deadline: Callable[[], bool]) -> None:
        """Rounds of prices and columns until the mix gains no more, then whole replicas."""
        stale = 0
        for _ in range(ROUNDS):
            before = region.mixed
            incumbent, restriction, duals = self._solve(elites, region)
            if deadline():
                return
            stale = stale + 1 if region.mixed < before * ENOUGH else 0
            if stale == STALE:
                break
            if region.rounds == 0:
                region.prices = first_prices(self._tables, restriction.allowed)
            smooth = SMOOTH * region.prices + (1 - SMOOTH) * duals
            region.prices = np.where(region.prices < math.inf, smooth, duals)
            promising = float(np.partition(region.gain, -BOTTLENECKS, axis=None)[-BOTTLENECKS])
            is_partial = region.gain.max() > PROMISING
            least_gain = max(PROMISING, promising) if is_partial else -math.inf
            new = self._generate(incumbent, restriction, region, least_gain)
            region.rounds += 1
            if not new and not is_partial:
                break  # no column is worth more than its price
        incumbent, restriction = self._restriction(elites, region)
        self.master.branch(elites, incumbent, restriction)

    def _perturb(self, elites: EliteSet, deadline: Callable[[], bool]) -> None:
        """Templates for other prices near the best plan, which use up what its best mix leaves."""
        incumbent, restriction, duals = self._solve(elites, self._near)
        for _ in range(PERTURBATIONS):
            if deadline():
                return
            self._near.prices = duals * np.exp(self._random.normal(0.0, SIGMA, len(duals)))
            self._generate(incumbent, restriction, self._near, -math.inf)
        self.master.branch(elites, incumbent, restriction)

    def _region(self, nic_s: float, share: float) -> Region:
        return Region(nic_s, share, np.full(self._problem.tried, -1.0), np.zeros(0))

    def _restriction(self, elites: EliteSet, region: Region) -> tuple[Incumbent, Restriction]:
        incumbent = self.master.incumbent(elites)
        nic_s = region.nic_s or incumbent.nic_s
        most_s = region.share * incumbent.seconds or incumbent.longest_s
        return incumbent, restricted(self._tables, incumbent, nic_s, most_s)

    def _solve(self, elites: EliteSet, region: Region) -> tuple[Incumbent, Restriction, Floats]:
        incumbent, restriction = self._restriction(elites, region)
        region.mixed, duals = self.master.solve(elites, incumbent, restriction)
        return incumbent, restriction, duals

    def _generate(
        self,
        incumbent: Incumbent,
        restriction: Restriction,
        region: Region,
        least_gain: float,
    ) -> int:
        """Add the templates that are worth more than they cost; returns how many were new."""
        columns = new_columns(2 * PER_ROUND)
        price_columns(
            self._tables,
            self._problem,
            restriction.horizon_s,
            region.prices,
            restriction.limit,
            region.gain,
            least_gain,
            columns,
        )
        return self.master.add(columns, PER_ROUND, incumbent.pipelines)


def nic_speeds(t: Tables) -> list[float]:
    """Seconds per byte of the NICs that are far enough apart to matter, slowest first."""
    speeds: list[float] = []
    for slowness in sorted(set(t.nic[:, 1].tolist()), reverse=True):
        if not speeds or slowness * APART < speeds[-1]:
            speeds.append(slowness)
    return speeds
