"""Steps that regroup stages: from one template to another, and into more or fewer replicas.

Pipelines share out GPUs as routes share out customers, so the steps are those of vehicle routing:
one customer goes to another route, two change places, two routes swap all that is behind a point of
each (2-opt* of Potvin and Rousseau), two become one, and one becomes two.
Invariant: GPUs in use stay the same, but for those that rounding a count of replicas gives back.
"""

from __future__ import annotations

from planner.estimator.jit import inlined
from planner.estimator.tables import Ints
from planner.estimator.unplaced_plan import UnplacedPlan, copy_slot, delete_stage, insert_stage
from planner.search.annealing.random import below

FEW = 4  # stages


@inlined
def exchange_stages(deepest: int, plan: UnplacedPlan, k: int, j: int, state: Ints) -> bool:
    """Give a stage of slot `k` to slot `j`, or swap two, or all behind; whether that is possible.

    Both are to be filled again.
    """
    plan.pipelines[k] = plan.pipelines[j] = 0
    s = below(state, plan.depth[k])
    r = below(state, plan.depth[j])
    step = below(state, 4)
    if step < 2:
        return swap_tails(deepest, plan, k, j, s, r + below(state, 2))
    given, taken = plan.options[k, s], plan.options[j, r]
    if step == 2:
        plan.options[k, s], plan.options[j, r] = taken, given
        return given != taken
    if plan.depth[k] == 1 or plan.depth[j] == deepest:
        return False
    insert_stage(plan, j, r, given)
    delete_stage(plan, k, s)
    return True


@inlined
def swap_tails(deepest: int, plan: UnplacedPlan, k: int, j: int, s: int, r: int) -> bool:
    """Swap the stages of slot `k` from `s` on for those of slot `j` from `r` on, if possible."""
    one, other = plan.depth[k] - s, plan.depth[j] - r
    if s + other < 1 or s + r == 0 or max(s + other, r + one) > deepest:
        return False
    differs = one != other
    for i in range(max(one, other)):
        given, taken = plan.options[k, s + i], plan.options[j, r + i]
        plan.options[k, s + i], plan.options[j, r + i] = taken, given
        differs = differs or given != taken
    plan.depth[k] = s + other
    plan.depth[j] = r + one
    return differs


@inlined
def change_form(deepest: int, plan: UnplacedPlan, k: int, state: Ints) -> bool:
    """More replicas of fewer stages or the reverse; whether that is possible.

    Twice or half as many stages, or a few more or less: where a stage holds few blocks it takes
    several stages more at once until the slowest holds one less.
    """
    plan.pipelines[k] = 0
    depth = plan.depth[k]
    step = below(state, 4)
    if step == 0:
        wanted = 2 * depth
    elif step == 1:
        wanted = depth // 2
    else:
        more = 1 + below(state, FEW)
        wanted = depth + more if step == 2 else depth - more
    replicas = plan.replicas[k] * depth // max(1, wanted)
    if wanted < 1 or wanted > deepest or replicas < 1:
        return False
    if wanted > depth:
        for s in range(wanted - 1, -1, -1):
            plan.options[k, s] = plan.options[k, s * depth // wanted]
    else:
        for s in range(wanted):
            plan.options[k, s] = plan.options[k, s * depth // wanted]
    plan.depth[k] = wanted
    plan.replicas[k] = replicas
    return True


@inlined
def join_templates(deepest: int, plan: UnplacedPlan, k: int, j: int) -> bool:
    """Put the stages of slot `k` behind those of slot `j`; the last slot takes the place of `k`."""
    last = plan.number[0] - 1
    before, added = plan.depth[j], plan.depth[k]
    if j == k or before + added > deepest:
        return False
    for s in range(added):
        plan.options[j, before + s] = plan.options[k, s]
    plan.depth[j] = before + added
    plan.replicas[j] = min(plan.replicas[j], plan.replicas[k])
    plan.pipelines[j] = 0
    if k != last:
        copy_slot(plan, last, plan, k)
    plan.number[0] = last
    return True


@inlined
def cut_template(plan: UnplacedPlan, k: int, state: Ints) -> None:
    """Make the last stages of slot `k`, two or more, a template of their own."""
    new = plan.number[0]
    cut = 1 + below(state, plan.depth[k] - 1)
    plan.number[0] = new + 1
    copy_slot(plan, k, plan, new)
    for s in range(cut, plan.depth[k]):
        plan.options[new, s - cut] = plan.options[k, s]
    plan.depth[new] = plan.depth[k] - cut
    plan.depth[k] = cut
    plan.pipelines[k] = plan.pipelines[new] = 0


@inlined
def regroup(
    deepest: int, max_templates: int, plan: UnplacedPlan, k: int, dirty: Ints, state: Ints
) -> int:
    """More replicas of fewer stages or the reverse, two templates joined, or one cut in two.

    Marks the slots that differ.  Returns one of them; -1 if the step is not possible.
    """
    count = plan.number[0]
    changed = k
    dirty[k] = 1
    if below(state, 2):
        return k if change_form(deepest, plan, k, state) else -1
    if count > 1 and below(state, 2):
        changed = below(state, count)
        if not join_templates(deepest, plan, k, changed):
            return -1
        dirty[count - 1] = 1
        return k if changed == count - 1 else changed
    if count == max_templates or plan.depth[k] < 2:
        return -1
    cut_template(plan, k, state)
    return count
