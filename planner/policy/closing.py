"""Close templates: their replicas, their fill in the context of the plan, and the plan's price.

The fill takes as many replicas as can be packed, or the power of two below where that is faster:
then n b M meets B without a remainder, and GPUs stay for later templates.
Invariant: a row that is not ended holds a plan that trains exactly B samples.
Source: Heddle, sections 5.3 (fill) and 5.5 (what a template that does not fit means).
"""

from __future__ import annotations

import math

from planner.kernel.bag import Bag, fillings_of, most_replicas, pipelines_of
from planner.kernel.elites import Elites, remember
from planner.kernel.filling import Bench, fill_template
from planner.kernel.jit import jit
from planner.kernel.local_search import objective
from planner.kernel.moves import Wishes
from planner.kernel.tables import Ints, Tables
from planner.kernel.whole_plan import iteration_seconds
from planner.policy.drafts import Drafts

PER_SIZE = 4  # splits of one micro-batch size, as in the annealing
REFILL = 1.5  # a change of the number of pipelines by this factor fills a template again


@jit
def draft_bag(d: Drafts, r: int) -> Bag:
    """One construction as the kernel prices it, a view."""
    return Bag(
        d.number[r],
        d.depth[r],
        d.options[r],
        d.replicas[r],
        d.chosen[r],
        d.pipelines[r],
        d.filling_count[r],
        d.size[r],
        d.tau_s[r],
        d.sum_s[r],
        d.most[r],
        d.blocks[r],
    )


@jit
def price_with(t: Tables, d: Drafts, r: int, replicas: int, bench: Bench) -> float:
    """Seconds of an iteration if the last template has so many replicas; infinite if it cannot."""
    bag = draft_bag(d, r)
    k = bag.number[0] - 1
    bag.replicas[k] = replicas
    bag.pipelines[k] = 0
    pipelines = pipelines_of(bag)
    for j in range(k + 1):
        before = bag.pipelines[j]
        if before == 0 or before * REFILL < pipelines or pipelines * REFILL < before:
            bag.pipelines[j] = pipelines
            fill_template(
                t,
                bag.options[j],
                bag.depth[j],
                bag.replicas[j],
                pipelines,
                PER_SIZE,
                bench,
                fillings_of(bag, j),
            )
        if bag.filling_count[j, 0] == 0:
            return math.inf
    return iteration_seconds(t, bag)


@jit
def close_templates(
    t: Tables,
    wishes: Wishes,
    d: Drafts,
    rows: Ints,
    t_max: int,
    bench: Bench,
    elites: Elites,
) -> int:
    """Fill and price the open template of each row; returns how many plans were priced.

    A template that does not fit ends its row at the plan so far.  Every plan on the way is offered
    to the elites.
    """
    priced = 0
    for i in range(len(rows)):
        r = rows[i]
        bag = draft_bag(d, r)
        k = bag.number[0]
        bag.number[0] = k + 1
        most = most_replicas(t, bag, k)
        seconds = math.inf
        best = 0
        power = 1
        while power * 2 <= most:
            power *= 2
        last = 0
        for n in (most, power):
            if n < 1 or n == last:
                continue
            last = n
            new_s = price_with(t, d, r, n, bench)
            priced += 1
            if new_s < seconds:
                seconds = new_s
                best = n
        if best == 0:
            bag.number[0] = k
            d.ended[r] = 1
            continue
        if best != last:
            price_with(t, d, r, best, bench)
        d.seconds[r] = seconds
        for s in range(bag.depth[k]):
            option = bag.options[k, s]
            d.taken[r, option] += best * t.option_tp[option]
        d.used[r] = 0
        value = objective(t, wishes, bag)
        if value < math.inf:
            remember(elites, bag, value)
        if k + 1 >= t_max:
            d.ended[r] = 1
    return priced
