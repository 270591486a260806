"""How many layers a stage could take, and what each number is like.

Invariant: a number that the mask keeps leaves at least one layer for every stage to come, and the
last stage takes what is left.
Source: Heddle, section 6.4 ("Search efficiency", flat-RL).
Legend: R rows, L layers, F features.
"""

from __future__ import annotations

from planner.estimator.jit import jit
from planner.estimator.tables import Ints
from planner.policy.drafts import Drafts
from planner.policy.features import Menu
from planner.policy.schema import Array, Bools

LARGEST = 4.0  # of ratios


@jit
def observe_layers(m: Menu, d: Drafts, rows: Ints, out: Array, mask: Bools) -> None:
    """Features and mask of the layers of the stage placed last: out [R, L, F], mask [R, L]."""
    for i in range(len(rows)):
        r = rows[i]
        k = d.plans.number[r, 0]
        depth = d.plans.depth[r, k]
        j = d.stage[r] - 1
        left = m.layers
        slowest = 0.0
        for s in range(j):
            blocks = d.plans.blocks[r, k, 0, s]
            left -= blocks
            slowest = max(slowest, blocks / max(1e-6, m.speed[d.plans.options[r, k, s]]))
        to_come = depth - 1 - j
        option = d.plans.options[r, k, j]
        speed = max(1e-6, m.speed[option])
        held = m.state_share[option] + (depth - j) * m.kept_share[option]
        for layers in range(1, m.layers + 1):
            mask[i, layers - 1] = layers <= left - to_come and (to_come > 0 or layers == left)
            row = out[i, layers - 1]
            row[0] = layers / m.layers
            row[1] = min(LARGEST, layers * depth / m.layers) / LARGEST
            row[2] = min(LARGEST, layers * (to_come + 1) / left) / LARGEST
            row[3] = min(LARGEST, layers * held)
            row[4] = min(LARGEST, layers / speed * depth / m.layers) / LARGEST
            row[5] = min(LARGEST, layers / speed / max(1e-6, slowest)) / LARGEST
            row[6] = m.speed[option]
            row[7] = 1.0 if j == 0 else 0.0
