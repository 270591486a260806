"""The steps that an annealing takes from one plan to another."""

from __future__ import annotations

from planner.estimator.jit import inlined, jit
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import Ints, Tables
from planner.estimator.unplaced_plan import (
    UnplacedPlan,
    copy_slot,
    delete_stage,
    insert_stage,
    most_replicas,
)
from planner.search.annealing.random import below
from planner.search.annealing.regrouping import exchange_stages, regroup

MOVES = 16  # as likely as each other: 5 times other stages, then from each number on
REPLICAS = 5  # 3 times another number of replicas
ADD = 8  # a new template
DROP = 9  # one template less
MOVE_REPLICAS = 10  # from one template to another; 3 times stages, up to
REGROUP = 14  # twice


@jit
def is_twice(t: Tables, large: int, small: int) -> bool:
    """Whether both options are of one type, one with twice the TP degree of the other."""
    return (
        small >= 0
        and large < len(t.option_tp)
        and t.option_type[large] == t.option_type[small]
        and t.option_tp[large] == 2 * t.option_tp[small]
    )


@inlined
def change_stages(t: Tables, limits: SearchLimits, plan: UnplacedPlan, k: int, state: Ints) -> None:
    """Replace, insert, delete, swap, halve or join stages of slot `k`, to be filled again."""
    plan.pipelines[k] = 0
    depth = plan.depth[k]
    s = below(state, depth)
    step = below(state, 6)
    options = plan.options[k]
    if step == 0:
        options[s] = below(state, len(t.option_tp))
    elif step == 1 and depth < limits.deepest:
        added = below(state, len(t.option_tp))
        if below(state, 2):
            added = options[s]
        insert_stage(plan, k, s, added)
    elif step == 2 and depth > 1:
        delete_stage(plan, k, s)
    elif step == 3 and depth > 1:
        other = below(state, depth)
        options[s], options[other] = options[other], options[s]
    elif step == 4 and is_twice(t, options[s], options[s] - 1) and depth < limits.deepest:
        options[s] -= 1  # the same GPUs as two stages
        insert_stage(plan, k, s, options[s])
    elif step == 4 and s + 1 < depth and options[s] == options[s + 1]:
        if is_twice(t, options[s] + 1, options[s]):  # or as one stage
            options[s] += 1
            delete_stage(plan, k, s + 1)
    else:  # one stage more of one kind, one less of another
        other = below(state, depth)
        options[s] = options[other]


@inlined
def random_stages(t: Tables, limits: SearchLimits, plan: UnplacedPlan, k: int, state: Ints) -> None:
    """A template of one or two kinds of stages in slot `k`, to be filled."""
    plan.pipelines[k] = 0
    depth = 1 + below(state, limits.deepest)
    one = below(state, len(t.option_tp))
    other = below(state, len(t.option_tp))
    cut = below(state, depth + 1)
    plan.depth[k] = depth
    for s in range(depth):
        plan.options[k, s] = one if s < cut else other


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
def some_replicas(replicas: int, state: Ints) -> int:
    """One of so many replicas, or any number of them."""
    return 1 + below(state, replicas) if below(state, 2) else 1


@inlined
def add_template(
    t: Tables, limits: SearchLimits, plan: UnplacedPlan, k: int, dirty: Ints, state: Ints
) -> int:
    """A new template for what is left, or for replicas of slot `k`; the slot of it."""
    added = plan.number[0]
    plan.number[0] = added + 1
    if below(state, 2):
        random_stages(t, limits, plan, added, state)
    else:
        copy_slot(plan, k, plan, added)
        change_stages(t, limits, plan, added, state)
    plan.replicas[added] = 1
    if below(state, 2):
        plan.replicas[k] -= some_replicas(plan.replicas[k], state)
        dirty[k] = 1
    if below(state, 2):
        plan.replicas[added] = most_replicas(t, plan, added)
    return added


@inlined
def drop_template(t: Tables, plan: UnplacedPlan, k: int, dirty: Ints, state: Ints) -> int:
    """The template of slot `k` goes; the slot of another one, which may take its room."""
    last = plan.number[0] - 1
    if k != last:
        copy_slot(plan, last, plan, k)
        dirty[k] = 1
    dirty[last] = 1
    plan.number[0] = last
    other = below(state, last)
    if below(state, 2):
        plan.replicas[other] = most_replicas(t, plan, other)
    return other


@inlined
def move_replicas(t: Tables, plan: UnplacedPlan, k: int, other: int, state: Ints) -> None:
    """Replicas of slot `k` go, and slot `other` has one more or as many as fit."""
    plan.replicas[k] -= some_replicas(plan.replicas[k], state)
    plan.replicas[other] += 1
    if below(state, 2):
        plan.replicas[other] = most_replicas(t, plan, other)


@inlined
def propose(t: Tables, limits: SearchLimits, plan: UnplacedPlan, dirty: Ints, state: Ints) -> bool:
    """Change the plan a little; marks the slots that differ; False if it cannot pack."""
    count = plan.number[0]
    k = below(state, count)
    move = below(state, MOVES)
    changed = k
    if move < REPLICAS:
        change_stages(t, limits, plan, k, state)  # as many replicas as before, or as fit
    elif move >= REGROUP:
        changed = regroup(limits.deepest, limits.max_templates, plan, k, dirty, state)
        if changed < 0:
            return False
    elif move < ADD or limits.max_templates == 1:
        plan.replicas[k] = change_replicas(most_replicas(t, plan, k), plan.replicas[k], state)
    elif move == ADD and count < limits.max_templates:
        changed = add_template(t, limits, plan, k, dirty, state)
    elif move == DROP and count > 1:
        changed = drop_template(t, plan, k, dirty, state)
    elif count > 1:  # replicas or stages move from one template to another
        changed = below(state, count)
        if changed == k:
            return False
        dirty[k] = dirty[changed] = 1
        if move == MOVE_REPLICAS:
            move_replicas(t, plan, k, changed, state)
        elif not exchange_stages(limits.deepest, plan, k, changed, state):
            return False
    else:
        random_stages(t, limits, plan, k, state)
        plan.replicas[k] = most_replicas(t, plan, k)
    dirty[changed] = 1
    for j in range(plan.number[0]):
        if plan.replicas[j] < 1:
            return False
    most = most_replicas(t, plan, changed)
    if most < 1:
        return False
    plan.replicas[changed] = min(plan.replicas[changed], most)
    return True
