"""The columns that are known: templates, and every way to fill each of them.

Invariant: a column is filled as a template of `multiple` replicas; a plan made of columns is priced
again as a whole, so that nothing here is believed.
Source: Heddle, section 5.3 (fill).   Legend: N columns, O options, F fillings, D stages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.estimator.by_reference import by_reference
from planner.estimator.fill.filling import fill_template
from planner.estimator.fill.given_blocks import fill_as
from planner.estimator.jit import jit
from planner.estimator.tables import MAX_DEPTH, MAX_FILLINGS, Floats, Ints, Tables
from planner.estimator.unplaced_plan import Fillings, UnplacedPlan
from planner.estimator.workspace import Workspace
from planner.search.column_generation.gradient_limit import GradientLimit, is_within

PER_SIZE = 2  # splits of one micro-batch size


@by_reference
class Pool(NamedTuple):
    """Columns; the first `number[0]` rows hold.

    Attributes:
        number: [1] of them.
        depth: [N].
        options: [N, D].
        multiple: [N] replicas come in multiples of this.
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
    multiple: Ints
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
def add_column(
    t: Tables,
    pool: Pool,
    depth: int,
    options: Ints,
    blocks: Ints,
    multiple: int,
    pipelines: int,
    work: Workspace,
    fillings: Fillings,
) -> bool:
    """Put a template into the pool, these blocks among its fillings; whether that is new.

    Args:
        t: what it prices with.
        pool: takes the column.
        depth: of the template.
        options: [D].
        blocks: [D] of one filling.
        multiple: of replicas.
        pipelines: of the plans that it is made for, which say how many micro-batches each has.
        work: for the function's own use.
        fillings: likewise.
    """
    c = row_of(pool, depth, options, multiple)
    fillings.number[0] = 0
    if c < 0:
        c = pool.number[0]
        if c == len(pool.depth):
            return False
        fill_template(
            t, options, depth, multiple, max(pipelines, multiple), int(PER_SIZE), work, fillings
        )
        if fillings.number[0] == 0:
            return False
        pool.number[0] = c + 1
        pool.depth[c] = depth
        pool.multiple[c] = multiple
        pool.fillings[c] = 0
        for s in range(depth):
            pool.options[c, s] = options[s]
    fill_as(t, depth, options, blocks, multiple, work, fillings)
    return add_fillings(pool, c, fillings)


@jit
def row_of(pool: Pool, depth: int, options: Ints, multiple: int) -> int:
    """Where the pool has that column; -1 if nowhere."""
    for c in range(pool.number[0]):
        if pool.depth[c] == depth and pool.multiple[c] == multiple:
            s = 0
            while s < depth and pool.options[c, s] == options[s]:
                s += 1
            if s == depth:
                return c
    return -1


@jit
def add_fillings(pool: Pool, c: int, fillings: Fillings) -> bool:
    """Give a column those fillings that it has not; whether there was one."""
    before = pool.fillings[c]
    for f in range(fillings.number[0]):
        row = pool.fillings[c]
        if row == pool.size.shape[1]:
            break
        is_known = False
        for other in range(row):
            is_known = is_known or (
                pool.size[c, other] == fillings.size[f]
                and pool.tau_s[c, other] == fillings.tau_s[f]
                and pool.sum_s[c, other] == fillings.sum_s[f]
                and pool.most[c, other] == fillings.most[f]
            )
        if is_known:
            continue
        pool.fillings[c] = row + 1
        pool.size[c, row] = fillings.size[f]
        pool.tau_s[c, row] = fillings.tau_s[f]
        pool.sum_s[c, row] = fillings.sum_s[f]
        pool.most[c, row] = fillings.most[f]
        for s in range(pool.depth[c]):
            pool.blocks[c, row, s] = fillings.blocks[f, s]
    return pool.fillings[c] > before


@jit
def worth_of(
    t: Tables, pool: Pool, horizon_s: float, limit: GradientLimit, parts: Floats, whole: Floats
) -> None:
    """Samples that the replicas of each column train in the time, with its best filling.

    Args:
        t: what it prices with.
        pool: of the columns.
        horizon_s: T.
        limit: fillings whose gradients take longer stay out.
        parts: [N] takes the samples if a micro-batch had parts.
        whole: [N] takes the samples of whole micro-batches.
    """
    for c in range(pool.number[0]):
        parts[c] = 0.0
        whole[c] = 0.0
        for f in range(pool.fillings[c]):
            if pool.sum_s[c, f] > horizon_s:
                continue
            b = t.sizes[pool.size[c, f]] * pool.multiple[c]
            count = 1 + (horizon_s - pool.sum_s[c, f]) / pool.tau_s[c, f] + 1e-9
            count = min(count, float(pool.most[c, f]))
            if b * count <= parts[c] and b * int(count) <= whole[c]:
                continue
            if is_within(limit, pool.depth[c], pool.options[c], pool.blocks[c, f]):
                parts[c] = max(parts[c], b * count)
                whole[c] = max(whole[c], float(b * int(count)))


@jit
def uses_of(t: Tables, pool: Pool, out: Floats) -> None:
    """GPUs of each column by row of room [O, N]: TP groups count in those of smaller degrees."""
    for c in range(pool.number[0]):
        for row in range(len(out)):
            out[row, c] = 0.0
        for s in range(pool.depth[c]):
            used = pool.options[c, s]
            for row in range(used + 1):
                if t.option_type[row] == t.option_type[used]:
                    out[row, c] += t.option_tp[used] * pool.multiple[c]


@jit
def take_fillings(pool: Pool, c: int, limit: GradientLimit, plan: UnplacedPlan, k: int) -> bool:
    """Fill slot `k` of a plan as a column is, within the limit; whether there is a filling."""
    kept = 0
    for f in range(pool.fillings[c]):
        if is_within(limit, pool.depth[c], pool.options[c], pool.blocks[c, f]):
            plan.size[k, kept] = pool.size[c, f]
            plan.tau_s[k, kept] = pool.tau_s[c, f]
            plan.sum_s[k, kept] = pool.sum_s[c, f]
            plan.most[k, kept] = pool.most[c, f]
            for s in range(pool.depth[c]):
                plan.blocks[k, kept, s] = pool.blocks[c, f, s]
            kept += 1
    plan.filling_count[k, 0] = kept
    return kept > 0
