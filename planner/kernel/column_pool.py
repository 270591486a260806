"""The templates that column generation has found: what they are worth, and the plans made of them.

Invariant: a column is filled as a template of `together` replicas; a plan made of columns is filled
and priced again as a whole, so that nothing here is believed.
Source: research on plan search (column generation).   Legend: N columns, O options, F fillings.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.kernel.bag import Bag, copy_slot, most_replicas, pipelines_of
from planner.kernel.column_pricing import Columns
from planner.kernel.filling import Bench, Fillings, fill_template
from planner.kernel.jit import jit
from planner.kernel.local_search import Elites, Wishes, objective, refill, remember
from planner.kernel.tables import MAX_DEPTH, MAX_FILLINGS, Floats, Ints, Tables

PER_SIZE = 2  # splits of one micro-batch size


class Pool(NamedTuple):
    """Columns; the first `count[0]` rows hold.

    Attributes:
        count: [1].
        depth: [N].
        options: [N, D].
        together: [N] replicas come in multiples of this.
        filling_count: [N, 1], as the next four: fillings of each column.
        size: [N, F].
        tau_s: [N, F].
        sum_s: [N, F].
        most: [N, F].
        gradient_bytes: [N, F] of the GPU that holds most.
    """

    count: Ints
    depth: Ints
    options: Ints
    together: Ints
    filling_count: Ints
    size: Ints
    tau_s: Floats
    sum_s: Floats
    most: Ints
    gradient_bytes: Floats


@jit
def new_pool(most: int) -> Pool:
    """Room for so many columns."""
    return Pool(
        np.zeros(1, np.int64),
        np.zeros(most, np.int64),
        np.zeros((most, MAX_DEPTH), np.int64),
        np.zeros(most, np.int64),
        np.zeros((most, 1), np.int64),
        np.zeros((most, MAX_FILLINGS), np.int64),
        np.zeros((most, MAX_FILLINGS)),
        np.zeros((most, MAX_FILLINGS)),
        np.zeros((most, MAX_FILLINGS), np.int64),
        np.zeros((most, MAX_FILLINGS)),
    )


@jit
def is_known(pool: Pool, depth: int, options: Ints, together: int) -> bool:
    """Whether the pool has that column."""
    for c in range(pool.count[0]):
        if pool.depth[c] != depth or pool.together[c] != together:
            continue
        equal = True
        for s in range(depth):
            if pool.options[c, s] != options[s]:
                equal = False
                break
        if equal:
            return True
    return False


@jit
def add_column(
    t: Tables,
    pool: Pool,
    depth: int,
    options: Ints,
    together: int,
    pipelines: int,
    bench: Bench,
    fillings: Fillings,
) -> bool:
    """Fill a template and put it into the pool; False if it is there, or full, or does not fit."""
    c = pool.count[0]
    if c == len(pool.depth) or is_known(pool, depth, options, together):
        return False
    fill_template(
        t, options, depth, together, max(pipelines, together), PER_SIZE, bench, fillings
    )
    if fillings.count[0] == 0:
        return False
    pool.count[0] = c + 1
    pool.depth[c] = depth
    pool.together[c] = together
    pool.filling_count[c, 0] = fillings.count[0]
    for s in range(depth):
        pool.options[c, s] = options[s]
    for f in range(fillings.count[0]):
        pool.size[c, f] = fillings.size[f]
        pool.tau_s[c, f] = fillings.tau_s[f]
        pool.sum_s[c, f] = fillings.sum_s[f]
        pool.most[c, f] = fillings.most[f]
        pool.gradient_bytes[c, f] = most_gradient_bytes(t, options, depth, fillings.blocks[f])
    return True


@jit
def most_gradient_bytes(t: Tables, options: Ints, depth: int, blocks: Ints) -> float:
    """Bytes of gradients on the GPU of the template that holds most."""
    most = 0.0
    layer = 1
    for s in range(depth):
        tp = t.option_tp[options[s]]
        held = 0.0
        for one in range(layer - (s == 0), layer + blocks[s] + (s == depth - 1)):
            held += t.whole_bytes[one] + t.sharded_bytes[one] / tp
        layer += blocks[s]
        most = max(most, held)
    return most


@jit
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
    bag.count[0] = 1
    bag.depth[0] = depth
    for s in range(depth):
        bag.options[0, s] = options[s]
    most = most_replicas(t, bag, 0) // together * together
    power = together
    while power * 2 <= most:
        power *= 2
    priced = 0
    for replicas in (most, power):
        if replicas < 1 or (priced and most == power):
            continue
        bag.replicas[0] = replicas
        priced += 1
        if refill(t, bag, 0, bench):
            value = objective(t, wishes, bag)
            if value < math.inf:
                remember(elites, bag, value)
    return priced


@jit
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
    order = np.argsort(-columns.gain[: columns.count[0]])
    for row in order:
        if added == most:
            break
        depth, together = columns.depth[row], columns.together[row]
        options = columns.options[row]
        if add_column(t, pool, depth, options, together, pipelines, bench, fillings):
            added += 1
            priced += price_alone(t, wishes, bag, options, depth, together, bench, elites)
    return priced


@jit
def worth_of(
    t: Tables, pool: Pool, horizon_s: float, most_bytes: float, real: Floats, whole: Floats
) -> None:
    """Samples that a bundle of each column trains in the time: [N] with parts, [N] whole ones.

    Fillings with more bytes of gradients on a GPU stay out.
    """
    for c in range(pool.count[0]):
        real[c] = 0.0
        whole[c] = 0.0
        for f in range(pool.filling_count[c, 0]):
            if pool.sum_s[c, f] > horizon_s or pool.gradient_bytes[c, f] > most_bytes:
                continue
            b = t.sizes[pool.size[c, f]] * pool.together[c]
            count = 1 + (horizon_s - pool.sum_s[c, f]) / pool.tau_s[c, f] + 1e-9
            count = min(count, float(pool.most[c, f]))
            real[c] = max(real[c], b * count)
            whole[c] = max(whole[c], float(b * int(count)))


@jit
def uses_of(t: Tables, pool: Pool, out: Floats) -> None:
    """GPUs of a bundle of each column by room row: [O, N], larger TP groups of a type included."""
    out[:] = 0.0
    for c in range(pool.count[0]):
        for s in range(pool.depth[c]):
            used = pool.options[c, s]
            for row in range(used + 1):
                if t.option_type[row] == t.option_type[used]:
                    out[row, c] += t.option_tp[used] * pool.together[c]


@jit
def price_counts(
    t: Tables,
    wishes: Wishes,
    pool: Pool,
    chosen: Ints,
    counts: Ints,
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
        bag: for the function's own use.
        trial: likewise.
        bench: likewise.
        elites: takes the plans.

    Returns:
        Plans priced.
    """
    count = min(len(chosen), wishes.max_templates)
    bag.count[0] = count
    for k in range(count):
        c = chosen[k]
        bag.depth[k] = pool.depth[c]
        bag.replicas[k] = counts[k] * pool.together[c]
        for s in range(pool.depth[c]):
            bag.options[k, s] = pool.options[c, s]
    priced = price_bag(t, wishes, bag, bench, elites)
    for first in range(count):  # what is left goes to one template after the other
        trial.count[0] = count
        for k in range(count):
            copy_slot(bag, k, trial, k)
        grown = False
        for more in range(count):
            k = (first + more) % count
            together = pool.together[chosen[k]]
            most = most_replicas(t, trial, k) // together * together
            if most > trial.replicas[k]:
                trial.replicas[k] = most
                grown = True
        if not grown:
            break
        priced += price_bag(t, wishes, trial, bench, elites)
    return priced


@jit
def price_bag(t: Tables, wishes: Wishes, bag: Bag, bench: Bench, elites: Elites) -> int:
    """Fill all slots, price the plan and remember it; returns 1."""
    for k in range(bag.count[0]):
        if most_replicas(t, bag, k) < bag.replicas[k] or not refill(t, bag, k, bench):
            return 1
    value = objective(t, wishes, bag)
    if value < math.inf:
        remember(elites, bag, value)
    return 1


@jit
def pipelines_in(bag: Bag) -> int:
    """Replicas of all templates, for callers outside the kernel."""
    return pipelines_of(bag)
