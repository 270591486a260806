"""Column generation: rounds of dual prices and new templates, and whole plans made of them.

The restricted master problem (`master`) prices GPUs, the pricing problem (`pricing_problem`) finds
the templates that are worth more than their GPUs cost, until there are none.  A plan that is better
sets another time, in which other templates may be worth most, so that rounds begin anew.
Invariant: the same pricing, limits and top K give the same top K, unless the deadline interferes.
Source: Gilmore and Gomory, A linear programming approach to the cutting-stock problem (1961);
smoothed prices are Wentges's (1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from planner.estimator.build_tables import Pricing
from planner.estimator.objective import SearchLimits
from planner.estimator.top_k import TopK
from planner.search.column_generation.master import RestrictedMaster, first_prices
from planner.search.column_generation.network import new_network
from planner.search.column_generation.pricing_problem import new_columns, price_columns

PER_ROUND = 60  # best columns of a round
BOTTLENECKS = 32  # of a round, those that gained most the last time
PROMISING_RATIO = -0.06  # least gain, as a share, of these; all are tried where none gained so much
ROUNDS = 8  # of prices and columns, at most
ENOUGH = 1.002  # a round that adds less to the mix
STALE = 2  # such rounds in a row that end the rounds
SMOOTH = 0.5  # share of the prices before in those that are asked next
GOOD = 1e-3  # gain of a plan that is worth a second look around


class ColumnSearch:
    """Finds plans by column generation; what it has learned stays for the next run.

    Attributes:
        master: holds the columns.
    """

    def __init__(self, pricing: Pricing, limits: SearchLimits) -> None:
        """Prepare for one composition."""
        t = self._tables = pricing.tables
        self.master = RestrictedMaster(t, limits)
        self._network = new_network(t, limits.deepest)
        self._prices = first_prices(t)  # [O] of TP groups, the last
        self._mixed = 0.0  # samples of the last mix, a share of the batch

    def run(self, top_k: TopK, deadline: Callable[[], bool]) -> None:
        """Look for plans that are better than those of `top_k`, which holds at least one."""
        self.master.add_plans(top_k, int(self._network.multiples[-1]))
        before = math.inf
        while top_k.value.min() < before * (1 - GOOD) and not deadline():
            before = top_k.value.min()
            self._converge(top_k, deadline)

    def _converge(self, top_k: TopK, deadline: Callable[[], bool]) -> None:
        """Rounds of prices and columns until the mix gains no more."""
        stale = 0
        for _ in range(ROUNDS):
            before, incumbent = self._mixed, self.master.incumbent(top_k)
            self._mixed, duals = self.master.solve(top_k, incumbent)
            stale = stale + 1 if self._mixed < before * ENOUGH else 0
            if deadline() or stale == STALE:
                return
            self._prices = SMOOTH * self._prices + (1 - SMOOTH) * duals
            gain = self._network.gain
            promising = float(np.partition(gain, -BOTTLENECKS, axis=None)[-BOTTLENECKS])
            is_partial = gain.max() > PROMISING_RATIO
            least = max(PROMISING_RATIO, promising) if is_partial else -math.inf
            columns, asked = new_columns(2 * PER_ROUND), (incumbent.seconds, self._prices, least)
            price_columns(self._tables, self._network, *asked, columns)
            new = self.master.add(columns, PER_ROUND, incumbent.pipelines)
            if not new and not is_partial:
                return  # no column is worth more than its price
