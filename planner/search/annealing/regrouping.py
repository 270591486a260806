"""Steps that regroup stages: from one template to another, and into more or fewer replicas.

Pipelines share out GPUs as routes share out customers, so the steps are those of vehicle routing:
one customer goes to another route, two change places, two routes swap all that is behind a point of
each (2-opt* of Potvin and Rousseau), two become one, and one becomes two.
Invariant: GPUs in use stay the same, but for those that rounding a count of replicas gives back.
"""

from __future__ import annotations

from planner.estimator.bag import Bag, copy_slot, delete_stage, insert_stage
from planner.estimator.jit import inlined
from planner.estimator.tables import Ints
from planner.search.annealing.random import below

FEW = 4  # stages


@inlined
def exchange_stages(deepest: int, bag: Bag, k: int, j: int, state: Ints) -> bool:
    """Give a stage of slot `k` to slot `j`, or swap two, or all behind; whether that is possible.

    Both are to be filled again.
    """
    bag.pipelines[k] = bag.pipelines[j] = 0
    s = below(state, bag.depth[k])
    r = below(state, bag.depth[j])
    step = below(state, 4)
    if step < 2:
        return swap_tails(deepest, bag, k, j, s, r + below(state, 2))
    given, taken = bag.options[k, s], bag.options[j, r]
    if step == 2:
        bag.options[k, s], bag.options[j, r] = taken, given
        return given != taken
    if bag.depth[k] == 1 or bag.depth[j] == deepest:
        return False
    insert_stage(bag, j, r, given)
    delete_stage(bag, k, s)
    return True


@inlined
def swap_tails(deepest: int, bag: Bag, k: int, j: int, s: int, r: int) -> bool:
    """Swap the stages of slot `k` from `s` on for those of slot `j` from `r` on, if possible."""
    one, other = bag.depth[k] - s, bag.depth[j] - r
    if s + other < 1 or s + r == 0 or max(s + other, r + one) > deepest:
        return False
    differs = one != other
    for i in range(max(one, other)):
        given, taken = bag.options[k, s + i], bag.options[j, r + i]
        bag.options[k, s + i], bag.options[j, r + i] = taken, given
        differs = differs or given != taken
    bag.depth[k] = s + other
    bag.depth[j] = r + one
    return differs


@inlined
def change_form(deepest: int, bag: Bag, k: int, state: Ints) -> bool:
    """More replicas of fewer stages or the reverse; whether that is possible.

    Twice or half as many stages, or a few more or less: where a stage holds few blocks it takes
    several stages more at once until the slowest holds one less.
    """
    bag.pipelines[k] = 0
    depth = bag.depth[k]
    step = below(state, 4)
    if step == 0:
        wanted = 2 * depth
    elif step == 1:
        wanted = depth // 2
    else:
        more = 1 + below(state, FEW)
        wanted = depth + more if step == 2 else depth - more
    replicas = bag.replicas[k] * depth // max(1, wanted)
    if wanted < 1 or wanted > deepest or replicas < 1:
        return False
    if wanted > depth:
        for s in range(wanted - 1, -1, -1):
            bag.options[k, s] = bag.options[k, s * depth // wanted]
    else:
        for s in range(wanted):
            bag.options[k, s] = bag.options[k, s * depth // wanted]
    bag.depth[k] = wanted
    bag.replicas[k] = replicas
    return True


@inlined
def join_templates(deepest: int, bag: Bag, k: int, j: int) -> bool:
    """Put the stages of slot `k` behind those of slot `j`; the last slot takes the place of `k`."""
    last = bag.number[0] - 1
    before, added = bag.depth[j], bag.depth[k]
    if j == k or before + added > deepest:
        return False
    for s in range(added):
        bag.options[j, before + s] = bag.options[k, s]
    bag.depth[j] = before + added
    bag.replicas[j] = min(bag.replicas[j], bag.replicas[k])
    bag.pipelines[j] = 0
    if k != last:
        copy_slot(bag, last, bag, k)
    bag.number[0] = last
    return True


@inlined
def cut_template(bag: Bag, k: int, state: Ints) -> None:
    """Make the last stages of slot `k`, two or more, a template of their own."""
    new = bag.number[0]
    cut = 1 + below(state, bag.depth[k] - 1)
    bag.number[0] = new + 1
    copy_slot(bag, k, bag, new)
    for s in range(cut, bag.depth[k]):
        bag.options[new, s - cut] = bag.options[k, s]
    bag.depth[new] = bag.depth[k] - cut
    bag.depth[k] = cut
    bag.pipelines[k] = bag.pipelines[new] = 0


@inlined
def regroup(deepest: int, max_templates: int, bag: Bag, k: int, dirty: Ints, state: Ints) -> int:
    """More replicas of fewer stages or the reverse, two templates joined, or one cut in two.

    Marks the slots that differ.  Returns one of them; -1 if the step is not possible.
    """
    count = bag.number[0]
    changed = k
    dirty[k] = 1
    if below(state, 2):
        return k if change_form(deepest, bag, k, state) else -1
    if count > 1 and below(state, 2):
        changed = below(state, count)
        if not join_templates(deepest, bag, k, changed):
            return -1
        dirty[count - 1] = 1
        return k if changed == count - 1 else changed
    if count == max_templates or bag.depth[k] < 2:
        return -1
    cut_template(bag, k, state)
    return count
