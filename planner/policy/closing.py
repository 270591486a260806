"""Close templates of constructions, and price the plans that they make.

Invariant: a row that is not ended holds a plan that trains exactly B samples.
Source: Heddle, section 5.5 (what a template that does not fit means).
"""

from __future__ import annotations

import math

from planner.estimator.bag import Bag, fillings_of
from planner.estimator.bench import Bench
from planner.estimator.elites import Elites, remember
from planner.estimator.fill.given_blocks import fill_as
from planner.estimator.jit import allocating, inlined, jit
from planner.estimator.objective import Wishes, judged
from planner.estimator.reference_type import reference_to
from planner.estimator.tables import Ints, Tables
from planner.estimator.whole_plan import iteration_seconds
from planner.policy.appending import fill_last
from planner.policy.drafts import Drafts


@inlined
def draft_bag(d: Drafts, r: int) -> Bag:
    """One construction as the kernel prices it, a view."""
    p = d.plans
    bag: Bag = reference_to(
        Bag(
            p.number[r],
            p.depth[r],
            p.options[r],
            p.replicas[r],
            p.chosen[r],
            p.pipelines[r],
            p.filling_count[r],
            p.size[r],
            p.tau_s[r],
            p.sum_s[r],
            p.most[r],
            p.blocks[r],
        )
    )
    return bag


@inlined
def keep_or_end(
    t: Tables,
    wishes: Wishes,
    d: Drafts,
    r: int,
    bag: Bag,
    seconds: float,
    t_max: int,
    elites: Elites,
) -> None:
    """Close the last template of a row at its price; one that does not fit ends the row."""
    k = bag.number[0] - 1
    if seconds == math.inf:
        bag.number[0] = k
        d.ended[r] = 1
        return
    d.seconds[r] = seconds
    d.used[r] = 0
    for s in range(bag.depth[k]):
        option = bag.options[k, s]
        d.taken[r, option] += bag.replicas[k] * t.option_tp[option]
    value = judged(t, wishes, bag, seconds)
    if value < math.inf:
        remember(elites, bag, value)
    if k + 1 >= t_max:
        d.ended[r] = 1


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
    """Fill and price the open template of each row; returns how many plans there were.

    A template that does not fit ends its row at the plan so far.  Every plan on the way is offered
    to the elites.
    """
    for i in range(len(rows)):
        r = rows[i]
        bag = draft_bag(d, r)
        bag.number[0] += 1
        seconds = fill_last(t, bag, bench)
        keep_or_end(t, wishes, d, r, bag, seconds, t_max, elites)
    return len(rows)


@allocating
def close_as_chosen(
    t: Tables,
    wishes: Wishes,
    d: Drafts,
    rows: Ints,
    t_max: int,
    bench: Bench,
    elites: Elites,
) -> int:
    """Price the open template of each row with the layers, replicas and micro-batch it was given.

    They stand in the template's slot; of its fillings only the one that was chosen is kept.  What
    else a stage has (recomputation, expert tiling) is the fastest that fits.
    """
    for i in range(len(rows)):
        r = rows[i]
        bag = draft_bag(d, r)
        k = bag.number[0]
        bag.number[0] = k + 1
        wanted = bag.size[k, 0]
        blocks = bag.blocks[k, 0].copy()
        found = fillings_of(bag, k)
        found.number[0] = 0
        fill_as(t, bag.depth[k], bag.options[k], blocks, bag.replicas[k], bench, found)
        seconds = math.inf
        for f in range(found.number[0]):
            if found.size[f] == wanted:
                found.size[0] = wanted
                found.tau_s[0] = found.tau_s[f]
                found.sum_s[0] = found.sum_s[f]
                found.most[0] = found.most[f]
                found.number[0] = 1
                seconds = iteration_seconds(t, bag, bench.price, math.inf)
                break
        keep_or_end(t, wishes, d, r, bag, seconds, t_max, elites)
    return len(rows)
