"""The columns that are known: templates, and every way to fill each of them.

They are the slots of one large plan: a column's replicas are the multiple in which it comes.
Invariant: a plan made of columns is priced again as a whole, so that nothing here is believed.
Source: Heddle, section 5.3 (fill).   Legend: N columns, R rows, F fillings, D stages.
"""

from __future__ import annotations

from planner.estimator.fill.filling import fill_as, fill_template
from planner.estimator.jit import jit
from planner.estimator.tables import Floats, Tables
from planner.estimator.unplaced_plan import UnplacedPlan, copy_stages
from planner.estimator.workspace import Workspace
from planner.search.column_generation.network import counts_in

PER_SIZE = 2  # splits of one micro-batch size


def add_column(
    t: Tables, pool: UnplacedPlan, source: UnplacedPlan, k: int, pipelines: int, work: Workspace
) -> bool:
    """Put slot `k` of a plan into the pool, its first split among the fillings; whether it is new.

    It is filled as for plans of so many pipelines, which say how many micro-batches each has.
    """
    c = row_of(pool, source, k)
    if c < 0:
        c = pool.number[0]
        if c == len(pool.depth):
            return False
        copy_stages(source, k, pool, c)
        fill_template(t, pool, c, max(pipelines, pool.replicas[c]), PER_SIZE, work)
        if pool.filling_count[c, 0] == 0:
            return False
        pool.number[0] = c + 1
        fill_as(t, pool, c, source.blocks[k, 0], work)
        return True
    return fill_as(t, pool, c, source.blocks[k, 0], work)


@jit
def row_of(pool: UnplacedPlan, source: UnplacedPlan, k: int) -> int:
    """Where the pool has that template in that multiple; -1 if nowhere."""
    depth = source.depth[k]
    for c in range(pool.number[0]):
        if pool.depth[c] == depth and pool.replicas[c] == source.replicas[k]:
            s = 0
            while s < depth and pool.options[c, s] == source.options[k, s]:
                s += 1
            if s == depth:
                return c
    return -1


@jit
def worth_of(t: Tables, pool: UnplacedPlan, horizon_s: float, parts: Floats, whole: Floats) -> None:
    """Samples that the replicas of each column [N] train in the time, with its best filling.

    `parts` takes the samples if a micro-batch had parts, `whole` those of whole micro-batches.
    """
    for c in range(pool.number[0]):
        parts[c] = 0.0
        whole[c] = 0.0
        for f in range(pool.filling_count[c, 0]):
            if pool.sum_s[c, f] > horizon_s:
                continue
            b = t.sizes[pool.size[c, f]] * pool.replicas[c]
            count = 1 + (horizon_s - pool.sum_s[c, f]) / pool.tau_s[c, f] + 1e-9
            count = min(count, float(pool.most[c, f]))
            parts[c] = max(parts[c], b * count)
            whole[c] = max(whole[c], float(b * int(count)))


@jit
def uses_of(t: Tables, pool: UnplacedPlan, out: Floats) -> None:
    """GPUs of each column [R, N] by row of room and by limit, as `counts_in` says."""
    for c in range(pool.number[0]):
        for row in range(len(out)):
            out[row, c] = 0.0
        for s in range(pool.depth[c]):
            used = pool.options[c, s]
            for row in range(len(out)):
                if counts_in(t, row, used):
                    out[row, c] += t.option_tp[used] * pool.replicas[c]
