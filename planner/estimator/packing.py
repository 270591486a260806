"""How much longer a plan takes because some replicas do not find the nodes they are filled for.

A fill counts on runs of stages that begin on an empty node (`stage.fixed_seconds`).  As pipelines
seldom fill nodes evenly, the last replicas stand on what the others left, and wait for messages
between nodes where their fill has none.  They train fewer micro-batches, and the others more.
Invariant: without a run that has to be broken up nothing is added.
Source: Heddle, section 5.3 (packing); `planner.placement.place` decides in the end.
Legend: K templates, T node classes.
"""

from __future__ import annotations

from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Ints, Tables
from planner.estimator.unplaced_plan import UnplacedPlan
from planner.estimator.workspace import PriceWorkspace

MOST_CROSSINGS = 2  # messages that a stage waits for
MOST_GPUS = 1 << 20  # more than a replica has


@jit
def tightest(free: Ints, gpus: int) -> int:
    """The fewest free GPUs of a node that has room for so many; 0 if none has."""
    for level in range(gpus, len(free)):
        if free[level]:
            return level
    return 0


@jit
def break_up(free: Ints, gpus: int) -> int:
    """Put a run of so many GPUs on what is left; returns on how many nodes it then stands."""
    nodes = 0
    while gpus:
        level = tightest(free, gpus)
        if level == 0:
            level = min(gpus, len(free)) - 1
            while level and free[level] == 0:
                level -= 1
            if level == 0:
                break
        taken = min(level, gpus)
        free[level] -= 1
        free[level - taken] += 1
        gpus -= taken
        nodes += 1
    return nodes


@jit
def put_runs(free: Ints, gpus: int, replicas: int, most: int) -> int:
    """Place a run of each replica; returns the crossings that their fill does not think of.

    Args:
        free: [G + 1] nodes of the class by free GPUs.
        gpus: of the run, no more than a node has.
        replicas: of the template.
        most: crossings of one replica that count.
    """
    crossings = 0
    while replicas:
        level = tightest(free, gpus)
        if level == 0:
            crossings += min(most, max(0, break_up(free, gpus) - 1))
            replicas -= 1
            continue
        on_each = level // gpus
        nodes = min(free[level], replicas // on_each)
        if nodes == 0:
            nodes, on_each = 1, replicas
        free[level] -= nodes
        free[level - on_each * gpus] += nodes
        replicas -= nodes * on_each
    return crossings


@inlined
def template_crossings(
    t: Tables, size: int, options: Ints, depth: int, replicas: int, free: Ints
) -> float:
    """Seconds of all unforeseen messages that the slowest stages of a template wait for.

    Args:
        t: what it prices with.
        size: index of the micro-batch size.
        options: [D] of the template.
        depth: of the template.
        replicas: of the template.
        free: [T, G + 1] nodes by class and free GPUs.
    """
    worst_s = 0.0
    s = 0
    while s < depth:
        option = options[s]
        kind = t.option_type[option]
        gpus = t.option_tp[option]
        s += 1
        if t.node_gpus[kind] == 1:
            continue
        while s < depth:
            tp = t.option_tp[options[s]]
            if t.option_type[options[s]] != kind or gpus + tp > t.node_gpus[kind]:
                break
            gpus += tp
            s += 1
        crossings = put_runs(free[kind], gpus, replicas, MOST_CROSSINGS)
        if crossings:
            longer_s = t.port_s[option, size, t.option_tp[option]] - t.inside_s[kind, size]
            worst_s = max(worst_s, crossings * longer_s)
    return worst_s


@inlined
def hardest_first(t: Tables, plan: UnplacedPlan, order: Ints, weights: Ints) -> None:
    """The order of `planner.placement.place`: templates with wide TP groups and many GPUs first."""
    for k in range(plan.number[0]):
        widest = 0
        weights[k] = 0
        for s in range(plan.depth[k]):
            tp = t.option_tp[plan.options[k, s]]
            widest = max(widest, tp)
            weights[k] += tp
        weights[k] += widest * MOST_GPUS
    for i in range(plan.number[0]):
        j = i
        while j > 0 and weights[i] > weights[order[j - 1]]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


@inlined
def packing_seconds(t: Tables, plan: UnplacedPlan, work: PriceWorkspace, seconds: float) -> float:
    """What is added to the time of the pipelines, to first order.

    Args:
        t: what it prices with.
        plan: a plan whose fillings are chosen.
        work: for the function's own use.
        seconds: of its pipelines, if every run finds its nodes.
    """
    largest = work.free.shape[1] - 1  # GPUs of a node
    if t.spreads_experts or largest < 2:  # then all messages cross anyway
        return 0.0
    order, free = work.order[0], work.free
    hardest_first(t, plan, order, work.order[1])
    for kind in range(len(free)):
        for gpus in range(largest + 1):
            free[kind, gpus] = 0
        free[kind, t.node_gpus[kind]] = t.nodes[kind]
    rate = 0.0
    lost = 0.0
    for i in range(plan.number[0]):
        k = order[i]
        f = plan.chosen[k]
        own = t.sizes[plan.size[k, f]] / plan.tau_s[k, f]
        rate += plan.replicas[k] * own
        late_s = template_crossings(
            t, plan.size[k, f], plan.options[k], plan.depth[k], plan.replicas[k], free
        )
        if late_s > 0.0:
            lost += own * late_s / (plan.tau_s[k, f] + late_s / plan.replicas[k])
    return seconds * lost / (rate - lost)
