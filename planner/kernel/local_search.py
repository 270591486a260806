"""Annealing over whole plans: one template at a time changes, all are priced together.

Replica counts and the order of stages are free.  With one template allowed, this finds the plans
whose replicas share the batch without remainder, which rule where replicas are many.
Invariant: the same tables, start, seed and steps give the same elites.
Source: research on plan search (annealing over whole plans with free replica counts).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.kernel.bag import (
    Bag,
    copy_bag,
    copy_slot,
    fillings_of,
    most_replicas,
    new_bag,
    pipelines_of,
)
from planner.kernel.filling import Bench, fill_template
from planner.kernel.jit import jit
from planner.kernel.random import below, uniform
from planner.kernel.tables import MAX_DEPTH, MAX_TEMPLATES, Floats, Ints, Tables
from planner.kernel.whole_plan import iteration_seconds, price_per_hour

ELITES = 32
PER_SIZE = 4  # splits of one micro-batch size, while searching
REFILL = 1.5  # a change of the number of pipelines by this factor fills a slot again
HOT, COLD = 0.03, 0.0005  # temperatures, as shares of the objective


class Wishes(NamedTuple):
    """What is minimised, and what is allowed.

    Attributes:
        deepest: most stages.
        max_templates: most templates.
        counts_money: 1: money per sample; 0: seconds.
        most_s: of an iteration.
        most_price: money per hour.
    """

    deepest: int
    max_templates: int
    counts_money: int
    most_s: float
    most_price: float


class Elites(NamedTuple):
    """The best plans seen, all different; the first `count[0]` rows hold, in no order.

    Attributes:
        count: [1].
        value: [E] objective.
        templates: [E] number of templates.
        depth: [E, K].
        options: [E, K, D].
        replicas: [E, K].
        size: [E, K] index of the micro-batch size.
        most: [E, K] bound on micro-batches.
        tau_s: [E, K] bottleneck.
        sum_s: [E, K] sum over stages.
        blocks: [E, K, D].
    """

    count: Ints
    value: Floats
    templates: Ints
    depth: Ints
    options: Ints
    replicas: Ints
    size: Ints
    most: Ints
    tau_s: Floats
    sum_s: Floats
    blocks: Ints


@jit
def new_elites() -> Elites:
    """None yet."""
    return Elites(
        np.zeros(1, np.int64),
        np.full(ELITES, np.inf),
        np.zeros(ELITES, np.int64),
        np.zeros((ELITES, MAX_TEMPLATES), np.int64),
        np.zeros((ELITES, MAX_TEMPLATES, MAX_DEPTH), np.int64),
        np.zeros((ELITES, MAX_TEMPLATES), np.int64),
        np.zeros((ELITES, MAX_TEMPLATES), np.int64),
        np.zeros((ELITES, MAX_TEMPLATES), np.int64),
        np.zeros((ELITES, MAX_TEMPLATES)),
        np.zeros((ELITES, MAX_TEMPLATES)),
        np.zeros((ELITES, MAX_TEMPLATES, MAX_DEPTH), np.int64),
    )


@jit
def remember(elites: Elites, bag: Bag, value: float) -> None:
    """Keep the plan if it is among the best; equally good ones count as one."""
    row = -1
    worst = 0
    for e in range(elites.count[0]):
        if abs(elites.value[e] - value) <= 1e-12 * value:
            return
        if elites.value[e] > elites.value[worst]:
            worst = e
    if elites.count[0] < ELITES:
        row = elites.count[0]
        elites.count[0] += 1
    elif value < elites.value[worst]:
        row = worst
    else:
        return
    elites.value[row] = value
    elites.templates[row] = bag.count[0]
    for k in range(bag.count[0]):
        f = bag.chosen[k]
        elites.depth[row, k] = bag.depth[k]
        elites.replicas[row, k] = bag.replicas[k]
        elites.size[row, k] = bag.size[k, f]
        elites.most[row, k] = bag.most[k, f]
        elites.tau_s[row, k] = bag.tau_s[k, f]
        elites.sum_s[row, k] = bag.sum_s[k, f]
        for s in range(bag.depth[k]):
            elites.options[row, k, s] = bag.options[k, s]
            elites.blocks[row, k, s] = bag.blocks[k, f, s]


@jit
def objective(t: Tables, wishes: Wishes, bag: Bag) -> float:
    """What is minimised; infinite for a plan that cannot run or breaks a limit."""
    if pipelines_of(bag) < t.min_replicas:
        return math.inf
    seconds = iteration_seconds(t, bag)
    if seconds > wishes.most_s:
        return math.inf
    if wishes.counts_money or wishes.most_price < math.inf:
        price = price_per_hour(t, bag)
        if price > wishes.most_price:
            return math.inf
        if wishes.counts_money:
            return seconds * price
    return seconds


@jit
def refill(t: Tables, bag: Bag, k: int, bench: Bench) -> bool:
    """Fill a slot again; whether anything fits."""
    bag.pipelines[k] = pipelines_of(bag)
    fill_template(
        t,
        bag.options[k],
        bag.depth[k],
        bag.replicas[k],
        bag.pipelines[k],
        PER_SIZE,
        bench,
        fillings_of(bag, k),
    )
    return bag.filling_count[k, 0] > 0


@jit
def change_stages(t: Tables, wishes: Wishes, bag: Bag, k: int, state: Ints) -> None:
    """Replace, insert, delete or swap a stage of slot `k`."""
    depth = bag.depth[k]
    s = below(state, depth)
    step = below(state, 5)
    options = bag.options[k]
    if step == 0:
        options[s] = below(state, len(t.option_tp))
    elif step == 1 and depth < wishes.deepest:
        added = below(state, len(t.option_tp))
        if below(state, 2):
            added = options[s]
        for r in range(depth, s, -1):
            options[r] = options[r - 1]
        options[s] = added
        bag.depth[k] = depth + 1
    elif step == 2 and depth > 1:
        for r in range(s, depth - 1):
            options[r] = options[r + 1]
        bag.depth[k] = depth - 1
    elif step == 3 and depth > 1:
        other = below(state, depth)
        options[s], options[other] = options[other], options[s]
    else:  # one stage more of one kind, one less of another
        other = below(state, depth)
        options[s] = options[other]


@jit
def random_stages(t: Tables, wishes: Wishes, bag: Bag, k: int, state: Ints) -> None:
    """A template of one or two kinds of stages in slot `k`."""
    depth = 1 + below(state, wishes.deepest)
    one = below(state, len(t.option_tp))
    other = below(state, len(t.option_tp))
    cut = below(state, depth + 1)
    bag.depth[k] = depth
    for s in range(depth):
        bag.options[k, s] = one if s < cut else other


@jit
def change_replicas(most: int, replicas: int, state: Ints) -> int:
    """Another number of replicas, at most `most`."""
    step = below(state, 7)
    if step == 0:
        return replicas + 1
    if step == 1:
        return replicas - 1
    if step == 2:
        return replicas * 2
    if step == 3:
        return replicas // 2
    if step == 4:
        return most
    if step == 5:
        power = 1
        while power * 2 <= most:
            power *= 2
        return power
    return 1 + below(state, max(1, most))


@jit
def propose(t: Tables, wishes: Wishes, bag: Bag, dirty: Ints, state: Ints) -> bool:
    """Change the plan a little; marks what must be filled again; False if it cannot pack."""
    count = bag.count[0]
    k = below(state, count)
    step = below(state, 10)
    changed = k
    if step < 4:  # other stages, as many replicas as before, or as fit
        change_stages(t, wishes, bag, k, state)
    elif step < 7 or wishes.max_templates == 1:
        bag.replicas[k] = change_replicas(most_replicas(t, bag, k), bag.replicas[k], state)
    elif step == 7 and count < wishes.max_templates:  # a new template for what is left
        changed = count
        bag.count[0] = count + 1
        if below(state, 2):
            random_stages(t, wishes, bag, changed, state)
        else:
            copy_slot(bag, k, bag, changed)
            change_stages(t, wishes, bag, changed, state)
        bag.replicas[changed] = 1
        if below(state, 2):
            bag.replicas[k] -= 1
            dirty[k] = 1
        elif below(state, 2):
            bag.replicas[changed] = most_replicas(t, bag, changed)
    elif step == 8 and count > 1:  # a template goes; another may take its room
        if k != count - 1:
            copy_slot(bag, count - 1, bag, k)
            dirty[k] = 1
        dirty[count - 1] = 1
        bag.count[0] = count - 1
        changed = below(state, count - 1)
        if below(state, 2):
            bag.replicas[changed] = most_replicas(t, bag, changed)
    elif count > 1:  # a replica moves from one template to another
        changed = below(state, count)
        if changed == k:
            return False
        bag.replicas[k] -= 1
        bag.replicas[changed] += 1
        dirty[k] = 1
    else:
        random_stages(t, wishes, bag, k, state)
        bag.replicas[k] = most_replicas(t, bag, k)
    dirty[changed] = 1
    for j in range(bag.count[0]):
        if bag.replicas[j] < 1:
            return False
    most = most_replicas(t, bag, changed)
    if most < 1:
        return False
    bag.replicas[changed] = min(bag.replicas[changed], most)
    return True


@jit
def anneal(
    t: Tables,
    wishes: Wishes,
    now: Bag,
    trial: Bag,
    bench: Bench,
    elites: Elites,
    state: Ints,
    steps: int,
    hot: float,
    cold: float,
) -> float:
    """Walk from the plan in `now` (filled and priced here) for so many steps.

    Args:
        t: what it prices with.
        wishes: objective and limits.
        now: the start; the end of the walk afterwards.
        trial: for the function's own use.
        bench: likewise.
        elites: takes the best plans.
        state: [1] of the random numbers.
        steps: plans that are priced, at most.
        hot: first temperature, a share of the objective.
        cold: last one.

    Returns:
        The objective at the end of the walk.
    """
    dirty = np.zeros(MAX_TEMPLATES, np.int64)
    for k in range(now.count[0]):
        refill(t, now, k, bench)
    value = objective(t, wishes, now)
    if value < math.inf:
        remember(elites, now, value)
    copy_bag(now, trial)
    cooling = (cold / hot) ** (1.0 / max(1, steps))
    temperature = hot
    for _ in range(steps):
        temperature *= cooling
        dirty[:] = 0
        packs = propose(t, wishes, trial, dirty, state)
        new_value = math.inf
        if packs:
            pipelines = pipelines_of(trial)
            fits = True
            for k in range(trial.count[0]):
                before = trial.pipelines[k]
                if dirty[k] or before * REFILL < pipelines or pipelines * REFILL < before:
                    dirty[k] = 1
                    fits = fits and refill(t, trial, k, bench)
            if fits:
                new_value = objective(t, wishes, trial)
        accepted = new_value < value
        if not accepted and new_value < math.inf:
            accepted = uniform(state) < math.exp((value - new_value) / (temperature * value))
        if accepted:
            value = new_value
            remember(elites, trial, value)
            now.count[0] = trial.count[0]
            for k in range(trial.count[0]):
                now.chosen[k] = trial.chosen[k]
                now.replicas[k] = trial.replicas[k]
                if dirty[k]:
                    copy_slot(trial, k, now, k)
        else:
            trial.count[0] = now.count[0]
            for k in range(now.count[0]):
                trial.chosen[k] = now.chosen[k]
                trial.replicas[k] = now.replicas[k]
                if dirty[k]:
                    copy_slot(now, k, trial, k)
    return value


@jit
def start_uniform(t: Tables, wishes: Wishes, now: Bag, bench: Bench, elites: Elites) -> int:
    """Price every template of one option alone, as often as it fits and once; returns how many.

    The best of them is left in `elites`.
    """
    priced = 0
    now.count[0] = 1
    for option in range(len(t.option_tp)):
        for depth in range(1, wishes.deepest + 1):
            now.depth[0] = depth
            for s in range(depth):
                now.options[0, s] = option
            most = most_replicas(t, now, 0)
            if most < 1:
                break
            power = 1
            while power * 2 <= most:
                power *= 2
            last = 0
            for replicas in (most, power, 1):
                if replicas == last:
                    continue
                last = replicas
                now.replicas[0] = replicas
                priced += 1
                if refill(t, now, 0, bench):
                    value = objective(t, wishes, now)
                    if value < math.inf:
                        remember(elites, now, value)
    return priced


@jit
def load_elite(elites: Elites, row: int, bag: Bag) -> None:
    """The templates of one of the best plans, to be filled again."""
    bag.count[0] = elites.templates[row]
    for k in range(elites.templates[row]):
        bag.depth[k] = elites.depth[row, k]
        bag.replicas[k] = elites.replicas[row, k]
        for s in range(bag.depth[k]):
            bag.options[k, s] = elites.options[row, k, s]


@jit
def fresh_bag() -> Bag:
    """An empty bag, for callers outside the kernel."""
    return new_bag()


@jit
def offer(source: Elites, row: int, target: Elites) -> None:
    """Keep one of the best plans of another pool, if it is among the best here."""
    value = source.value[row]
    worst = 0
    for e in range(target.count[0]):
        if abs(target.value[e] - value) <= 1e-12 * value:
            return
        if target.value[e] > target.value[worst]:
            worst = e
    if target.count[0] < ELITES:
        worst = target.count[0]
        target.count[0] += 1
    elif value >= target.value[worst]:
        return
    target.value[worst] = value
    target.templates[worst] = source.templates[row]
    target.depth[worst] = source.depth[row]
    target.options[worst] = source.options[row]
    target.replicas[worst] = source.replicas[row]
    target.size[worst] = source.size[row]
    target.most[worst] = source.most[row]
    target.tau_s[worst] = source.tau_s[row]
    target.sum_s[worst] = source.sum_s[row]
    target.blocks[worst] = source.blocks[row]
