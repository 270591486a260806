"""A template whose split is given: where its stages stand, and how long they take.

Source: Heddle, section 5.3 (fill).   Legend: D stages.
"""

from __future__ import annotations

import math

from planner.estimator.fill.filling import variant_of
from planner.estimator.fill.stage import blocks_seconds, fixed_seconds, slot_of
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Floats, Ints, Tables
from planner.estimator.unplaced_plan import Fillings
from planner.estimator.workspace import Workspace


@inlined
def split_seconds(
    t: Tables,
    options: Ints,
    depth: int,
    blocks: Ints,
    replicas: int,
    size: int,
    most: int,
    fits: bool,
    fixed_s: Floats,
) -> tuple[float, float]:
    """The bottleneck of the stages and their sum, each with its fastest variant; infinite if none.

    Args:
        t: what it prices with.
        options: [D] of the template.
        depth: of the template.
        blocks: [D] of each stage.
        replicas: of the template, for tilings and ZeRO.
        size: index of the micro-batch size.
        most: micro-batches of a replica.
        fits: whether all are known to fit in memory.
        fixed_s: [D] what the stages take besides their blocks.
    """
    start = 0
    tau_s = 0.0
    sum_s = 0.0
    for s in range(depth):
        option = options[s]
        dense = max(0, min(start + blocks[s], t.dense) - start)
        others = blocks[s] - dense
        start += blocks[s]
        variant = 0
        if not fits or t.variants[option] > 1:
            slot = slot_of(option, size, s, depth, most, replicas)
            variant = variant_of(t, slot, dense, others)
        if variant < 0:
            tau_s = sum_s = math.inf
            break
        seconds = fixed_s[s] + blocks_seconds(t, option, size, variant, dense, others)
        tau_s = max(tau_s, seconds)
        sum_s += seconds
    return tau_s, sum_s


@jit
def fill_as(
    t: Tables,
    depth: int,
    options: Ints,
    blocks: Ints,
    replicas: int,
    work: Workspace,
    out: Fillings,
) -> None:
    """Append the fillings with these blocks: one of each micro-batch size that memory allows."""
    for size in range(len(t.sizes)):
        most = t.batch // t.sizes[size]
        row = out.number[0]
        if most < 1 or row == len(out.size):
            continue
        fixed_seconds(t, options, depth, size, t.spreads_experts == 1, work.fixed_s)
        tau_s, sum_s = split_seconds(
            t, options, depth, blocks, replicas, size, most, False, work.fixed_s
        )
        if sum_s < math.inf:
            out.size[row] = size
            out.tau_s[row] = tau_s
            out.sum_s[row] = sum_s
            out.most[row] = most
            for s in range(depth):
                out.blocks[row, s] = blocks[s]
            out.number[0] = row + 1
