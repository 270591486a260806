"""How many rings share the NIC of a node while gradients are summed.

GPUs of a node that sum the same pieces send them once.  Where replicas of one template stand
beside each other on a node, no more rings leave it than one replica has GPUs there; only templates
that hold different layers there add theirs.
Invariant: a GPU's share is never less than with all GPUs of its node sending apart.
Source: `planner.cost.gradient_sync` counts the rings of a placed plan.
Legend: K templates, T node classes.
"""

from __future__ import annotations

from planner.estimator import rules
from planner.estimator.jit import inlined
from planner.estimator.tables import Floats, Ints, Tables
from planner.estimator.unplaced_plan import UnplacedPlan

GPUS, FIRST, LAST = 0, 1, 2  # of a template on a class: GPUs of a replica, its layers there
ROW = 3  # GPUs of templates that stand in a row, each behind the layers before it


@inlined
def look_where(t: Tables, plan: UnplacedPlan, held: Ints) -> None:
    """GPUs of a replica of each template on each class, first and last layer there: [4, K, T]."""
    for k in range(plan.number[0]):
        for kind in range(held.shape[2]):
            held[GPUS, k, kind] = 0
        stop = 0
        for s in range(plan.depth[k]):
            start = stop
            stop += plan.blocks[k, plan.chosen[k], s]
            option = plan.options[k, s]
            kind = t.option_type[option]
            if held[GPUS, k, kind] == 0:
                held[FIRST, k, kind] = start
            held[GPUS, k, kind] += t.option_tp[option]
            held[LAST, k, kind] = stop


@inlined
def rings_of(number: int, replicas: Ints, kind: int, gpus: int, held: Ints) -> int:
    """The most rings that so many templates have on a node of that class; 0 if none uses it."""
    most, users = 0, 0
    for k in range(number):
        most = max(most, held[GPUS, k, kind])
        users += held[GPUS, k, kind] > 0
    if users < 2 or most >= gpus:
        return min(most, gpus)
    row = held[ROW, :, kind]
    for k in range(number):
        own = held[GPUS, k, kind]
        row[k] = own
        if own and gpus % own == 0 and replicas[k] * own % gpus == 0:
            row[k] = 0  # they fill whole nodes, and stand beside nobody else
    has_grown = True
    while has_grown:
        has_grown = False
        for k in range(number):
            for j in range(number):
                is_before = held[LAST, j, kind] <= held[FIRST, k, kind]
                if row[k] and row[j] and is_before and held[GPUS, k, kind] + row[j] > row[k]:
                    row[k] = held[GPUS, k, kind] + row[j]
                    most = max(most, row[k])
                    has_grown = True
    return min(most, gpus)


@inlined
def nic_seconds(t: Tables, plan: UnplacedPlan, held: Ints, out: Floats) -> None:
    """Seconds per byte [T] that a GPU sends between nodes while all sum gradients."""
    for kind in range(len(out)):
        out[kind] = t.nic[kind, 1]
    if not t.rings:
        return
    look_where(t, plan, held)
    for kind in range(len(out)):
        gpus = t.node_gpus[kind]
        if gpus > 1:
            rings = rings_of(plan.number[0], plan.replicas, kind, gpus, held)
            if rings:
                out[kind] *= rules.nic_share(rings, 1) / rules.nic_share(gpus, 1)


@inlined
def stage_nic_seconds(t: Tables, option: int, replicas: int, ways: int) -> float:
    """The same for one stage where nodes take one stage of many replicas.

    The GPUs of a TP group send apart, but for those that hold the same experts; a stage whose
    replicas do not fill its nodes shares one with others.
    """
    kind, tp = t.option_type[option], t.option_tp[option]
    seconds = t.nic[kind, 1]
    gpus = t.node_gpus[kind]
    if t.rings and gpus > 1:
        groups = max(1, gpus // tp)  # of a node
        stages = 1
        if replicas % groups:
            stages = 2 if replicas > groups else -(-groups // replicas)
            stages += replicas < groups and groups % replicas > 0
        rings = min(min(tp, ways) * stages, gpus)
        seconds *= rules.nic_share(rings, 1) / rules.nic_share(gpus, 1)
    return seconds
