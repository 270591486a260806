"""What a search minimises: whole plans before their placement, filled and priced.

The objective and its limits come with a request.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from planner.estimator.bag import Bag, fillings_of, most_replicas, pipelines_of
from planner.estimator.bench import Bench
from planner.estimator.elites import Elites, remember, worst_value
from planner.estimator.fill.filling import fill_template
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Tables
from planner.estimator.whole_plan import iteration_seconds, price_per_hour

PER_SIZE = 4  # splits of one micro-batch size, while searching
REFILL = 1.5  # a change of the number of pipelines by this factor fills a slot again


class Wishes(NamedTuple):
    """What is minimised, and what is allowed.

    Attributes:
        deepest: most stages.
        max_templates: most templates.
        counts_money: 1: money per sample; 0: seconds.
        most_s: of an iteration.
        most_price: money per hour.
        least_price: what money per hour counts at least while it is minimised.
    """

    deepest: int
    max_templates: int
    counts_money: int
    most_s: float
    most_price: float
    least_price: float = 0.0


@jit
def weight_of(t: Tables, wishes: Wishes, bag: Bag) -> float:
    """What a second of a plan counts: 1, or its price; infinite if it breaks a limit."""
    if pipelines_of(bag) < t.min_replicas:
        return math.inf
    if wishes.counts_money or wishes.most_price < math.inf:
        price = price_per_hour(t, bag)
        if price > wishes.most_price:
            return math.inf
        if wishes.counts_money:
            return max(price, wishes.least_price)
    return 1.0


@jit
def judged(t: Tables, wishes: Wishes, bag: Bag, seconds: float) -> float:
    """What is minimised, of a plan that takes so long; infinite if it breaks a limit."""
    if seconds > wishes.most_s:
        return math.inf
    return seconds * weight_of(t, wishes, bag)


@inlined
def objective(t: Tables, wishes: Wishes, bag: Bag, bench: Bench, limit: float) -> float:
    """What is minimised; infinite for a plan that cannot run, or breaks a limit.

    Args:
        t: what it prices with.
        wishes: objective and limits.
        bag: a plan whose slots are filled.
        bench: for the function's own use.
        limit: what is above it counts as infinite, and is known sooner.
    """
    weight = weight_of(t, wishes, bag)
    if weight == math.inf:
        return weight
    return weight * iteration_seconds(t, bag, bench.price, min(wishes.most_s, limit / weight))


@jit
def is_outdated(bag: Bag, k: int, pipelines: int) -> bool:
    """Whether a slot was filled in a plan of far more or fewer pipelines, or with other stages."""
    before = bag.pipelines[k]
    return before * REFILL < pipelines or pipelines * REFILL < before


@inlined
def refill(t: Tables, bag: Bag, k: int, bench: Bench) -> bool:
    """Fill a slot again; whether anything fits."""
    bag.pipelines[k] = pipelines_of(bag)
    fill_template(
        t,
        bag.options[k],
        bag.depth[k],
        bag.replicas[k],
        bag.pipelines[k],
        int(PER_SIZE),  # a constant would have every caller compile a fill of its own
        bench,
        fillings_of(bag, k),
    )
    return bag.filling_count[k, 0] > 0


@jit
def price_plan(
    t: Tables, wishes: Wishes, bag: Bag, bench: Bench, elites: Elites, is_filled: bool
) -> bool:
    """Price a plan, which joins the elites if it is among the best.

    Args:
        t: what it prices with.
        wishes: objective and limits.
        bag: the plan.
        bench: for the function's own use.
        elites: takes the plan.
        is_filled: whether its slots are filled already.

    Returns:
        Whether it packs, fits and is among the best.
    """
    if not is_filled:
        for k in range(bag.number[0]):
            if most_replicas(t, bag, k) < bag.replicas[k] or not refill(t, bag, k, bench):
                return False
    value = objective(t, wishes, bag, bench, worst_value(elites))
    if value == math.inf:
        return False
    remember(elites, bag, value)
    return True
