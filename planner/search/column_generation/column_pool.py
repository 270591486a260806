"""The templates that column generation has found: what they are worth, and the plans made of them.

Invariant: a column is filled as a template of `together` replicas; a plan made of columns is
priced again as a whole, so that nothing here is believed.
Source: research on plan search (column generation).   Legend: N columns, O options, F fillings.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.estimator.bag import Bag, Fillings, copy_bag, most_replicas, pipelines_of
from planner.estimator.bench import Bench
from planner.estimator.by_reference import by_reference
from planner.estimator.elites import Elites
from planner.estimator.fill.filling import fill_template
from planner.estimator.fill.given_blocks import fill_as, keeps_to
from planner.estimator.fill.zone_limits import Zones
from planner.estimator.jit import jit
from planner.estimator.objective import Wishes, price_plan
from planner.estimator.tables import MAX_DEPTH, MAX_FILLINGS, Floats, Ints, Tables
from planner.search.column_generation.best_columns import Columns

PER_SIZE = 2  # splits of one micro-batch size


@by_reference
class Pool(NamedTuple):
    """Columns; the first `number[0]` rows hold.

    Attributes:
        number: [1] of them.
        depth: [N].
        options: [N, D].
        together: [N] replicas come in multiples of this.
        fillings: [N] their number; of each:
        size: [N, F].
        tau_s: [N, F].
        sum_s: [N, F].
        most: [N, F].
        blocks: [N, F, D].
    """

    number: Ints
    depth: Ints
    options: Ints
    together: Ints
    fillings: Ints
    size: Ints
    tau_s: Floats
    sum_s: Floats
    most: Ints
    blocks: Ints


def new_pool(most: int) -> Pool:
    """Room for so many columns; numpy's own zeros, which take no time until they are used."""
    return Pool(
        np.zeros(1, np.int64),
        np.zeros(most, np.int64),
        np.zeros((most, MAX_DEPTH), np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros((most, MAX_FILLINGS), np.int64),
        np.zeros((most, MAX_FILLINGS)),
        np.zeros((most, MAX_FILLINGS)),
        np.zeros((most, MAX_FILLINGS), np.int64),
        np.zeros((most, MAX_FILLINGS, MAX_DEPTH), np.int64),
    )


@jit
def row_of(pool: Pool, depth: int, options: Ints, together: int) -> int:
    """Where the pool has that column; -1 if nowhere."""
    for c in range(pool.number[0]):
        if pool.depth[c] != depth or pool.together[c] != together:
            continue
        equal = True
        for s in range(depth):
            if pool.options[c, s] != options[s]:
                equal = False
                break
        if equal:
            return c
    return -1


@jit
def add_fillings(pool: Pool, c: int, fillings: Fillings) -> bool:
    """Give a column those fillings that it has not; whether there was one."""
    added = False
    for f in range(fillings.number[0]):
        row = pool.fillings[c]
        if row == pool.size.shape[1]:
            break
        known = False
        for other in range(row):
            if (
                pool.size[c, other] == fillings.size[f]
                and pool.tau_s[c, other] == fillings.tau_s[f]
                and pool.sum_s[c, other] == fillings.sum_s[f]
                and pool.most[c, other] == fillings.most[f]
            ):
                known = True
                break
        if known:
            continue
        added = True
        pool.fillings[c] = row + 1
        pool.size[c, row] = fillings.size[f]
        pool.tau_s[c, row] = fillings.tau_s[f]
        pool.sum_s[c, row] = fillings.sum_s[f]
        pool.most[c, row] = fillings.most[f]
        for s in range(pool.depth[c]):
            pool.blocks[c, row, s] = fillings.blocks[f, s]
    return added


@jit
def add_column(
    t: Tables,
    pool: Pool,
    depth: int,
    options: Ints,
    blocks: Ints,
    together: int,
    pipelines: int,
    bench: Bench,
    fillings: Fillings,
) -> bool:
    """Put a template into the pool, these blocks among its fillings; whether that is new."""
    c = row_of(pool, depth, options, together)
    fillings.number[0] = 0
    if c < 0:
        c = pool.number[0]
        if c == len(pool.depth):
            return False
        fill_template(
            t, options, depth, together, max(pipelines, together), int(PER_SIZE), bench, fillings
        )
        if fillings.number[0] == 0:
            return False
        pool.number[0] = c + 1
        pool.depth[c] = depth
        pool.together[c] = together
        pool.fillings[c] = 0
        for s in range(depth):
            pool.options[c, s] = options[s]
    fill_as(t, depth, options, blocks, together, bench, fillings)
    return add_fillings(pool, c, fillings)


def price_alone(
    t: Tables,
    wishes: Wishes,
    bag: Bag,
    options: Ints,
    depth: int,
    together: int,
    bench: Bench,
    elites: Elites,
) -> int:
    """Price a template as the only one, as often as it fits and a power of two times."""
    bag.number[0] = 1
    bag.depth[0] = depth
    bag.options[0, :depth] = options[:depth]
    most = int(most_replicas(t, bag, 0)) // together * together
    power = together
    while power * 2 <= most:
        power *= 2
    priced = 0
    for replicas in (most, power):
        if replicas < 1 or (priced and most == power):
            continue
        bag.replicas[0] = replicas
        price_plan(t, wishes, bag, bench, elites, False)
        priced += 1
    return priced


def add_columns(
    t: Tables,
    wishes: Wishes,
    columns: Columns,
    most: int,
    pipelines: int,
    pool: Pool,
    bag: Bag,
    bench: Bench,
    fillings: Fillings,
    elites: Elites,
) -> int:
    """Put the best columns into the pool and price each alone; returns how many plans it priced."""
    priced = 0
    added = 0
    for row in np.argsort(-columns.gain[: columns.number[0]], kind="stable"):
        if added == most:
            break
        depth, together = int(columns.depth[row]), int(columns.together[row])
        options = columns.options[row]
        before = pool.number[0]
        blocks = columns.blocks[row]
        if add_column(t, pool, depth, options, blocks, together, pipelines, bench, fillings):
            added += 1
            if pool.number[0] > before:
                priced += price_alone(t, wishes, bag, options, depth, together, bench, elites)
    return priced


@jit
def worth_of(
    t: Tables, pool: Pool, horizon_s: float, zones: Zones, real: Floats, whole: Floats
) -> None:
    """Samples that a bundle of each column trains in the time: [N] with parts, [N] whole ones.

    Fillings that do not keep to the zones stay out.
    """
    for c in range(pool.number[0]):
        real[c] = 0.0
        whole[c] = 0.0
        for f in range(pool.fillings[c]):
            if pool.sum_s[c, f] > horizon_s:
                continue
            b = t.sizes[pool.size[c, f]] * pool.together[c]
            count = 1 + (horizon_s - pool.sum_s[c, f]) / pool.tau_s[c, f] + 1e-9
            count = min(count, float(pool.most[c, f]))
            if b * count <= real[c] and b * int(count) <= whole[c]:
                continue
            if keeps_to(t, zones, pool.depth[c], pool.options[c], pool.blocks[c, f]):
                real[c] = max(real[c], b * count)
                whole[c] = max(whole[c], float(b * int(count)))


@jit
def uses_of(t: Tables, pool: Pool, out: Floats) -> None:
    """GPUs of a bundle of each column by room row: [O, N], larger TP groups of a type included."""
    for c in range(pool.number[0]):
        for row in range(len(out)):
            out[row, c] = 0.0
        for s in range(pool.depth[c]):
            used = pool.options[c, s]
            for row in range(used + 1):
                if t.option_type[row] == t.option_type[used]:
                    out[row, c] += t.option_tp[used] * pool.together[c]


def price_counts(
    t: Tables,
    wishes: Wishes,
    pool: Pool,
    chosen: Ints,
    counts: Ints,
    zones: Zones,
    bag: Bag,
    trial: Bag,
    bench: Bench,
    elites: Elites,
) -> int:
    """Price the plan of so many bundles of some columns, and the same filled up with its templates.

    Args:
        t: what it prices with.
        wishes: objective and limits.
        pool: of the columns.
        chosen: columns, the most important first; those beyond the most templates stay out.
        counts: bundles of each, at least one.
        zones: of the fillings.
        bag: for the function's own use.
        trial: likewise.
        bench: likewise.
        elites: takes the plans.

    Returns:
        Plans priced.
    """
    count = min(len(chosen), wishes.max_templates)
    chosen, counts = chosen[:count], counts[:count]
    bag.number[0] = count
    bag.depth[:count] = pool.depth[chosen]
    bag.replicas[:count] = counts * pool.together[chosen]
    bag.options[:count] = pool.options[chosen]

    def price(plan: Bag) -> None:
        if take_fillings(t, pool, chosen, zones, plan):
            price_plan(t, wishes, plan, bench, elites, True)
        price_plan(t, wishes, plan, bench, elites, False)

    price(bag)
    priced = 2
    for first in range(count):  # what is left goes to one template after the other
        copy_bag(bag, trial)
        if not add_replicas(t, pool, chosen, first, trial):
            break
        price(trial)
        priced += 2
    return priced


@jit
def add_replicas(t: Tables, pool: Pool, chosen: Ints, first: int, bag: Bag) -> bool:
    """Give the templates, from that one on, as many bundles as still fit; whether any grew."""
    grown = False
    for more in range(bag.number[0]):
        k = (first + more) % bag.number[0]
        together = pool.together[chosen[k]]
        most = most_replicas(t, bag, k) // together * together
        if most > bag.replicas[k]:
            bag.replicas[k] = most
            grown = True
    return grown


@jit
def take_fillings(t: Tables, pool: Pool, chosen: Ints, zones: Zones, bag: Bag) -> bool:
    """Fill each slot as the pool does and the zones allow; whether the plan packs and all fit."""
    for k in range(bag.number[0]):
        c = chosen[k]
        kept = 0
        for f in range(pool.fillings[c]):
            if keeps_to(t, zones, pool.depth[c], pool.options[c], pool.blocks[c, f]):
                bag.size[k, kept] = pool.size[c, f]
                bag.tau_s[k, kept] = pool.tau_s[c, f]
                bag.sum_s[k, kept] = pool.sum_s[c, f]
                bag.most[k, kept] = pool.most[c, f]
                for s in range(pool.depth[c]):
                    bag.blocks[k, kept, s] = pool.blocks[c, f, s]
                kept += 1
        bag.filling_count[k, 0] = kept
        bag.pipelines[k] = pipelines_of(bag)
        if kept == 0 or most_replicas(t, bag, k) < bag.replicas[k]:
            return False
    return True
