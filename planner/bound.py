"""A proof that no plan is faster: what the GPUs could be worth at most in a given time.

If, at some prices of GPUs, no template trains more samples in T than its GPUs cost, then no plan
trains more in T than all GPUs together cost; if that is less than the batch, every plan needs more
than T.  Prices come from column generation over relaxed templates (`planner.kernel.bound_pricing`),
and the largest T that is ruled out is found by bisection between times of which one was ruled out
and one was not.  Every plan then adds at least the shortest optimizer step, and its gradient sums:
with so many pipelines that a node has no room for a GPU of each, a GPU sends 2 (R-1)/R of its
gradients, experts apart, through a NIC no faster than its own node's.  Plans are ruled out by their
number of pipelines R, and cell by cell of the longest of these times (`planner.regimes`); a row
counts pipelines.  Messages inside a node and between nodes are told apart, for the slowest NICs
(`planner.visits`).
Invariant: no plan that `planner.cost.evaluate` prices within the assumptions beats the bound.
Source: research on plan search (the bound); Farley's bound for column generation.
"""

from __future__ import annotations

import math

import numpy as np

from planner.estimator.build_tables import Pricing, pricing_of
from planner.estimator.fill.zone_limits import Zones
from planner.estimator.tables import MAX_DEPTH, Floats, Ints
from planner.kernel.bound_pricing import new_relaxed, relaxed_stages, worst_columns
from planner.kernel.visits import new_walk
from planner.placement.node_classes import class_sizes
from planner.profiles.profile import Profile
from planner.regimes import FEWEST, Regime, regimes
from planner.relaxation import least_sums, optimistic, shortest_step
from planner.request import BoundAnswer, PlanAnswer, PlanRequest
from planner.search.column_generation.mixing import best_mix
from planner.search.column_generation.mixtures import (
    binding_rows,
    first_prices,
    is_lowest,
    option_prices,
)
from planner.visits import nested_room, visits_of

GRID, FINE_GRID = 1.015, 1.0075  # ratio of the ends of a cell of bottlenecks
FEW = 2  # pipelines, each of which may ask for more room than there is
STEPS = 4  # to prove that one that does is worth nothing
PRECISION, FINE_PRECISION = 0.003, 0.0015  # of the time that is ruled out
SHORT = 27_000  # ways to use an option x blocks of the model, over all rounds of prices: after a
# proof of so few, which takes up to three seconds, a finer one follows
ROUNDING = 1e-9  # of a gain that is taken for none; prices leave four times as much
ROUNDS = 60  # of prices and columns for one T
STRIDE = 8  # of the cells, as long as these have columns that are worth more than they cost
MOST_COLUMNS = 4000  # of one round
PER_ROUND = 60  # columns of a round that enter the mix
SMALLEST = 1e-3  # share of the plan's time below which no proof is looked for


def bound(request: PlanRequest, profile: Profile, answer: PlanAnswer) -> BoundAnswer:
    """An upper bound on samples/s of all plans for the request, and how near the answer is.

    Args:
        request: workload, composition and D_max.
        profile: supplies all costs.
        answer: any plan for it; where the bisection starts.
    """
    pricing = pricing_of(request.workload, request.composition, profile)
    if pricing is None:
        return BoundAnswer(None, None, ("no GPU type of the composition is profiled",))
    proof = Proof(pricing, request, profile)
    iteration_s = answer.price.iteration_s
    pipelines = sum(template.replicas for template in answer.plan.templates)
    least_s = proof.least_seconds(iteration_s, pipelines)
    if least_s is None:
        return BoundAnswer(
            None, None, (f"failed: no proof below {SMALLEST:g} of the plan's own iteration",)
        )
    if proof.refine():
        least_s = max(least_s, proof.least_seconds(iteration_s, pipelines) or 0.0)
    samples_s = request.workload.global_batch / least_s
    gap = 100 * (1 - answer.price.throughput_samples_s / samples_s)
    return BoundAnswer(samples_s, gap, proof.assumptions)


def node_worth(request: PlanRequest, profile: Profile, answer: PlanAnswer) -> dict[str, float]:
    """About how many samples/s one more of the largest nodes of each type adds: dual prices."""
    pricing = pricing_of(request.workload, request.composition, profile)
    if pricing is None:
        return {}
    prices = Proof(pricing, request, profile).prices(answer.price.iteration_s)
    t = pricing.tables
    worth: dict[str, float] = {}
    for kind, one in enumerate(pricing.classes):
        lowest = int(np.flatnonzero(t.option_type == kind)[0])
        each = prices[lowest] / t.option_tp[lowest]
        samples_s = float(each * one.gpus) / t.batch * answer.price.throughput_samples_s
        worth[one.gpu_type] = max(worth.get(one.gpu_type, 0.0), samples_s)
    return worth


class Proof:
    """The relaxed problem of one request."""

    def __init__(self, pricing: Pricing, request: PlanRequest, profile: Profile) -> None:
        """Prepare all stages that there can be.

        Args:
            pricing: of the request.
            request: what is asked.
            profile: of the request.
        """
        nodes = tuple(class_sizes(request.composition).values())
        t = optimistic(pricing, request.workload, profile)
        t = t._replace(room=nested_room(t, pricing, nodes))
        self._tables = t
        self._gpus = request.composition.gpus
        self._deepest = min(request.deepest, MAX_DEPTH)
        self._least = _classes(self._deepest, t.batch)
        options = len(t.option_tp)
        self._stage_s = np.empty(
            (
                len(self._least),
                len(t.sizes),
                options,
                self._deepest,
                2,
                t.dense + 1,
                t.layers + 1,
            )
        )
        replicas = math.lcm(*{int(ways) for ways in t.ways.flat}) * t.batch
        relaxed_stages(t, self._least, replicas, self._stage_s)
        self._visits = visits_of(t, pricing, request.workload, profile, nodes)
        self._step_s = shortest_step(t, self._deepest)
        self._walk = new_walk(self._visits, self._deepest, t.layers, len(t.option_tp))
        self._sums = least_sums(t, pricing, profile, FEWEST)
        self._found = new_relaxed(MOST_COLUMNS, options, len(FEWEST))
        self._rows = binding_rows(t)
        self._columns = np.zeros((0, 5 + len(FEWEST) + options))
        links = [profile.network, *profile.nics.values()]
        self._sums_count = not any(link.points for link in links)  # else latency hides in sizes
        self._taus_s: Floats = np.zeros(0)
        self._grid, self._precision = GRID, PRECISION
        self._work = 0.0
        self.assumptions = (
            f"at most {request.deepest} stages a replica",
            f"TP degrees {_listed({tp for _, tp in pricing.options})}, inside a node",
            f"micro-batches {_listed(set(t.sizes.tolist()))}",
            "the profile's seconds, on the fastest node of each type",
            "an iteration of (M - 1) max t + sum t, gradient sums and optimizer step",
            *(
                ("expert tilings with EP a power of two and ETP 1 or TP",)
                if request.workload.model.experts
                else ()
            ),
        )

    def least_seconds(self, iteration_s: float, pipelines: int) -> float | None:
        """The longest iteration that is ruled out for all plans; None if none is.

        Args:
            iteration_s: of a plan, where the bisection starts.
            pipelines: of the plan; its regime is likely to be the one that matters.
        """
        self._set_grid(iteration_s)
        least_s = iteration_s
        regimes = sorted(self.regimes(iteration_s), key=lambda one: one.fewest <= pipelines)
        while regimes:
            regime = regimes.pop()
            if self.is_ruled_out(least_s, regime):
                continue
            if regime.halves():
                regimes.extend(reversed(regime.halves()))
                continue
            ruled_out_s = self._ruled_out_below(regime, least_s)
            if ruled_out_s is None:
                return None
            least_s = ruled_out_s
        return least_s

    def _ruled_out_below(self, regime: Regime, high_s: float) -> float | None:
        """About the longest iteration that is ruled out in a regime, given one that is not.

        Both ends of the bisection were tried: the low one was ruled out, the high one was not.
        """
        step, shortest_s = 1 - self._precision, SMALLEST * high_s
        low_s = step * high_s
        while not self.is_ruled_out(low_s, regime):
            step = max(0.8, 1 - 3 * (1 - step))
            high_s, low_s = low_s, step * low_s
            if low_s < shortest_s:
                return None
        while high_s > low_s * (1 + self._precision):
            middle_s = math.sqrt(low_s * high_s)
            if self.is_ruled_out(middle_s, regime):
                low_s = middle_s
            else:
                high_s = middle_s
        return low_s

    def refine(self) -> bool:
        """Make cells finer, and forget the columns of wide ones; False if that takes too long."""
        if self._work > SHORT:
            return False
        self._grid, self._precision = FINE_GRID, FINE_PRECISION
        self._columns = self._columns[:0]
        return True

    def rules_out(self, iteration_s: float, regime: Regime) -> bool:
        """As `is_ruled_out`, the regime split as finely as it takes."""
        if self.is_ruled_out(iteration_s, regime):
            return True
        halves = regime.halves()
        return bool(halves) and all(self.rules_out(iteration_s, half) for half in halves)

    def regimes(self, iteration_s: float) -> tuple[Regime, ...]:
        """All plans, by their number of pipelines."""
        most = min(self._gpus, self._tables.batch)
        found = regimes(iteration_s, sums_count=self._sums_count)
        return tuple(one for one in found if one.fewest <= most)

    def prices(self, iteration_s: float) -> Floats:
        """[O] what a TP group is worth in samples within the time, gradient sums apart."""
        self._set_grid(iteration_s)
        free = Regime(1, math.inf)
        self.is_ruled_out(iteration_s, free)
        t, by_row = self._tables, self._mix(iteration_s, free)[1]
        every = np.ones(len(t.node_gpus), np.bool_)
        return option_prices(t, self._rows, by_row[self._rows], every)

    def _set_grid(self, pipeline_s: float) -> None:
        least_s = float(self._stage_s[..., 1:].min(initial=math.inf))
        count = 2 + max(1, math.ceil(math.log(max(1.0, pipeline_s / least_s), self._grid)))
        self._taus_s = np.asarray(least_s * (1 - 1e-9) * self._grid ** np.arange(count))

    def _mix(self, horizon_s: float, regime: Regime) -> tuple[float, Floats, float]:
        """Samples of the best mix of the columns known, [O] prices of room, and of a replica."""
        t = self._tables
        known = self._columns
        sync_s = known[:, 3 + FEWEST.index(regime.fewest)]
        is_in_cell = (known[:, -2] <= horizon_s) & (horizon_s < known[:, -1])
        known = known[is_in_cell & (sync_s <= regime.sums_s[-1])]
        if len(known) == 0:
            return 0.0, self._first_prices(), 0.0
        worth = known[:, 0] + (horizon_s - known[:, 2]) * known[:, 1]
        room = t.room[self._rows].astype(np.float64)
        uses = known[:, 3 + len(FEWEST) : -2].T[self._rows]
        if regime.most < math.inf:
            uses = np.vstack([uses, np.ones(len(worth))])
            room = np.append(room, regime.most)
        good = np.flatnonzero(worth > 0)
        if len(good) == 0:
            return 0.0, self._first_prices(), 0.0
        amounts, duals = np.zeros(len(good)), np.zeros(len(room))
        uses = np.ascontiguousarray(uses[:, good])
        total = best_mix(worth[good], uses, room, amounts, duals)
        by_row = np.zeros(len(t.room))
        by_row[self._rows] = duals[: len(self._rows)]
        replica = float(duals[-1]) if len(duals) > len(self._rows) else 0.0
        return float(total), by_row, replica

    def _zones(self, regime: Regime) -> Zones:
        """How long stages sum gradients at least, and at most."""
        t, count = self._tables, FEWEST.index(regime.fewest)
        block_s, ends_s = self._sums.block_s[count], self._sums.ends_s[count]
        anywhere = np.zeros(len(block_s), np.int64)
        return Zones(t.layers, 0, anywhere, block_s, block_s, ends_s, regime.sums_s[-1])

    def _first_prices(self) -> Floats:
        """[O] prices of room in proportion to how fast a type is."""
        t = self._tables
        every = np.ones(len(t.node_gpus), np.bool_)
        lowest = [is_lowest(t, option) for option in range(len(t.room))]
        return np.asarray(first_prices(t, every) / t.option_tp * lowest)

    def is_ruled_out(self, iteration_s: float, regime: Regime) -> bool:
        """Whether it is proven that no plan of the regime has iterations of that time."""
        batch = self._tables.batch
        horizon_s = iteration_s - self._step_s - regime.sums_s[0]
        if horizon_s <= 0:
            return True
        zones = self._zones(regime)
        stride = STRIDE
        for _ in range(ROUNDS):
            total, prices, replica = self._mix(horizon_s, regime)
            if total >= batch:
                return False
            if total:  # dearer, up to the batch: as good a proof, and sooner at an end
                dearer = batch * (1 - 4 * ROUNDING) / total
                prices, replica = prices * dearer, replica * dearer
            self._work += len(self._visits.option) * self._tables.layers / stride
            worst = worst_columns(
                self._tables,
                horizon_s,
                prices,
                replica,
                self._visits,
                self._taus_s,
                self._least,
                self._stage_s,
                zones,
                self._sums,
                STEPS if regime.most <= FEW and stride == 1 else 0,
                stride,
                self._walk,
                self._found,
            )
            if worst <= ROUNDING:
                if stride == 1:
                    return True
                stride = 1
                continue
            found, count = self._found, int(self._found.number[0])
            new = [found.fixed, found.rate, found.sum_s, found.sync_s, found.uses]
            new += [found.from_s, found.until_s]
            rows = np.column_stack([part[:count] for part in new])
            best = np.argsort(-found.gain[:count], kind="stable")[:PER_ROUND]
            self._columns = np.concatenate([self._columns, rows[best]])
        return False


def _classes(deepest: int, batch: int) -> Ints:
    """Least micro-batches of each class: powers of two until everything is in flight."""
    least = [1]
    while least[-1] < deepest and least[-1] * 2 <= batch:
        least.append(least[-1] * 2)
    return np.array(least)


def _listed(values: set[int]) -> str:
    return ", ".join(map(str, sorted(values)))
