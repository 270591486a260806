"""Whether a template can still hold the model: masks that look ahead to the stages to come.

A choice that can be packed may lead to no plan: small GPUs in one stage too few hold no model, and
that is known only when the template is closed.  Here the stages to come take the GPUs that hold the
most blocks, as long as these leave one for each; a choice is left out where the model has more
blocks even so.
Where nearly every GPU is needed, another way to share them may hold a block or two more.  So a
choice that just fits may be left out.
Invariant: where nothing would be kept, nothing is left out.
Source: Heddle, section 5.1 (feasibility masking), which masks what cannot be packed alone.
Legend: O options, R episodes, C node classes, K TP degrees, D most stages.
"""

from __future__ import annotations

import math

from planner.estimator.fill.stage import block_cap, slot_of
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Ints, Tables
from planner.policy.features import ActionSpace
from planner.policy.gpus_left import gpus_left, stages_left, stages_with
from planner.policy.partial_plans import PartialPlans
from planner.policy.schema import Bools


@jit
def most_blocks(t: Tables, option: int, s: int, depth: int, most: int, replicas: int) -> int:
    """Blocks that stage `s` holds at most, in micro-batches of the smallest size; 0: none.

    A replica trains `most` of these, and the template has as many as `replicas`.
    """
    if t.ends_s[option, 0, 0] == math.inf:
        return 0
    slot = slot_of(option, 0, s, depth, most, replicas)
    found = 0
    for variant in range(t.variants[option]):
        if t.block_s[option, 0, variant, 1] < math.inf:
            found = max(found, block_cap(t, slot, variant, 0))
    return found


@inlined
def take_back(used: Ints, added: Ints) -> None:
    """Undo what `add_stages` did."""
    for o in range(len(used)):
        used[o] -= added[o]


@jit
def add_stages(
    t: Tables,
    m: ActionSpace,
    taken: Ints,
    used: Ints,
    stages: tuple[int, int],
    shares: tuple[int, int],
    blocks: int,
    left: Ints,
    added: Ints,
) -> int:
    """Add stages to `used` [O], the last first, until the others need one block each.

    Late stages choose first: they keep the activations of the fewest micro-batches, so that memory
    is worth most there.  `stages` are the first that is open and the depth, `shares` what
    `most_shares` found.  `added` [O] becomes what was added, and `left` [O] what that leaves.

    Returns:
        How many stages are still open; -1 if so many blocks are not held.
    """
    first, depth = stages
    added[:] = 0
    held = 0
    for opened in range(depth - first, -1, -1):
        gpus_left(m, taken, used, left)
        # the last stage holds the head besides, so it is looked at in any case
        if held + opened >= blocks and (opened < depth - first or first == depth):
            return opened
        if opened == 0:
            break
        beside = stages_left(m, taken, used, left)
        best = -1
        best_blocks = 0
        for o in range(len(m.tp)):
            if left[o] < m.tp[o]:
                continue
            found = most_blocks(t, o, first + opened - 1, depth, shares[0], shares[1])
            if found > best_blocks and stages_with(m, taken, used, o, beside, left) >= opened - 1:
                best, best_blocks = o, found
        if best < 0:
            break
        held += best_blocks
        used[best] += 1
        added[best] += 1
    return -1


@inlined
def most_shares(t: Tables, d: PartialPlans, r: int, gpus: int, depth: int) -> tuple[int, int]:
    """Micro-batches of a replica, where a template of that depth has the most replicas; and these.

    Fewer micro-batches keep fewer activations, so nothing that fits is left out.
    """
    pipelines = 0
    for k in range(d.plans.number[r, 0]):
        pipelines += d.plans.replicas[r, k]
    replicas = max(1, min(t.batch, gpus // depth))
    return math.ceil(t.batch / (t.sizes[0] * (pipelines + replicas))), replicas


@jit
def keep_depths(
    t: Tables, m: ActionSpace, d: PartialPlans, rows: Ints, left: Ints, added: Ints, mask: Bools
) -> None:
    """Leave depths out of `mask` [R, D + 1] whose stages do not hold the model.

    Where that leaves neither a depth nor STOP, all stay.  `left` and `added` [O] are for the
    function's own use.
    """
    for i in range(len(rows)):
        r = rows[i]
        taken, used = d.taken[r], d.used[r]
        gpus = gpus_left(m, taken, used, left)
        deepest = min(stages_left(m, taken, used, left), m.deepest)
        found = mask[i, 0]
        for depth in range(1, deepest + 1):
            shares = most_shares(t, d, r, gpus, depth)
            opened = add_stages(t, m, taken, used, (0, depth), shares, t.layers, left, added)
            take_back(used, added)
            mask[i, depth] = opened >= 0
            found = found or opened >= 0
        if not found:
            mask[i, 1 : deepest + 1] = True


@inlined
def blocks_of_options(
    t: Tables, m: ActionSpace, s: int, depth: int, shares: tuple[int, int], mask: Bools, own: Ints
) -> int:
    """Blocks of each option [O] of `mask` [C, K] in stage `s`; returns the least above 0."""
    least = t.layers
    for o in range(len(m.tp)):
        own[o] = 0
        if mask[m.option_class[o], m.degree[o]]:
            own[o] = most_blocks(t, o, s, depth, shares[0], shares[1])
        if own[o]:
            least = min(least, own[o])
    return least


@inlined
def serve_together(
    t: Tables,
    m: ActionSpace,
    taken: Ints,
    used: Ints,
    stages: tuple[int, int],
    shares: tuple[int, int],
    blocks: int,
    left: Ints,
    added: Ints,
    own: Ints,
) -> None:
    """Set `own` [O] to -1 where later stages that hold so many blocks leave a group of an option.

    One way to choose these stages serves most options, and is found once.
    """
    opened = add_stages(t, m, taken, used, stages, shares, blocks, left, added)
    beside = stages_left(m, taken, used, left)
    for o in range(len(m.tp)):
        is_left = own[o] > 0 and opened >= 0 and left[o] >= m.tp[o]
        if is_left and stages_with(m, taken, used, o, beside, left) >= opened:
            own[o] = -1
    take_back(used, added)


@inlined
def serve_alone(
    t: Tables,
    m: ActionSpace,
    taken: Ints,
    used: Ints,
    stages: tuple[int, int],
    shares: tuple[int, int],
    blocks: int,
    left: Ints,
    added: Ints,
    own: Ints,
) -> int:
    """Set `own` [O] to -1 where an option and later stages hold so many blocks; how many are."""
    found = 0
    for o in range(len(m.tp)):
        if own[o] > 0:
            used[o] += 1
            rest = blocks - own[o]
            if add_stages(t, m, taken, used, stages, shares, rest, left, added) >= 0:
                own[o] = -1
            take_back(used, added)
            used[o] -= 1
        if own[o] < 0:
            found += 1
    return found


@jit
def keep_stages(
    t: Tables,
    m: ActionSpace,
    d: PartialPlans,
    rows: Ints,
    left: Ints,
    added: Ints,
    own: Ints,
    mask: Bools,
) -> None:
    """Leave options out of `mask` [R, C, K] beside which the model is not held.

    Where that leaves none, all stay.  `left`, `added` and `own` [O] are for the function's own use.
    """
    for i in range(len(rows)):
        r = rows[i]
        number, j = d.plans.number[r, 0], d.stage[r]
        depth, options = d.plans.depth[r, number], d.plans.options[r, number]
        taken, used = d.taken[r], d.used[r]
        gpus = gpus_left(m, taken, used, left)
        for s in range(j):
            gpus += m.tp[options[s]]
        shares = most_shares(t, d, r, gpus, depth)
        blocks = t.layers
        for s in range(j):
            blocks -= most_blocks(t, options[s], s, depth, shares[0], shares[1])
        later = (j + 1, depth)
        least = blocks_of_options(t, m, j, depth, shares, mask[i], own)
        serve_together(t, m, taken, used, later, shares, blocks - least, left, added, own)
        if serve_alone(t, m, taken, used, later, shares, blocks, left, added, own):
            for o in range(len(m.tp)):
                if own[o] >= 0:
                    mask[i, m.option_class[o], m.degree[o]] = False
