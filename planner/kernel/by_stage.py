"""How much longer a plan takes where nodes take one stage of many replicas.

Fewer rings then share a NIC while gradients are summed, as replicas of a stage send them once.  But
all messages between stages cross nodes, where a fill counts on neighbours (`stage.fixed_seconds`).
Plans are placed both ways, and the better counts.
Invariant: nothing is added where no stage has a neighbour on its node.
Source: `planner.placement`, whose rule is "by stage".   Legend: K templates, T node classes.
"""

from __future__ import annotations

from planner.kernel.bag import Bag
from planner.kernel.jit import inlined, jit
from planner.kernel.tables import Floats, Ints, Tables


@jit
def handing_seconds(
    option_type: Ints,
    option_tp: Ints,
    node_gpus: Ints,
    crossing_s: Floats,
    inside_s: Floats,
    options: Ints,
    depth: int,
) -> float:
    """What the stage of a template that hands over most waits longer per micro-batch.

    Args:
        option_type: of the tables, of which it takes no more: passing all costs as much as it does.
        option_tp: of the tables.
        node_gpus: of the tables.
        crossing_s: [O, O] of the micro-batch size.
        inside_s: [T] of the micro-batch size.
        options: [D] of the template.
        depth: of the template.
    """
    worst_s = 0.0
    before_s = 0.0  # of the message to the stage before
    left = node_gpus[option_type[options[0]]] - option_tp[options[0]]  # free, beside the last stage
    for s in range(1, depth):
        option = options[s]
        kind = option_type[option]
        tp = option_tp[option]
        longer_s = 0.0
        if option_type[options[s - 1]] == kind and left >= tp:
            longer_s = crossing_s[options[s - 1], option] - inside_s[kind]
            left -= tp
        else:
            left = node_gpus[kind] - tp
        worst_s = max(worst_s, before_s + longer_s)
        before_s = longer_s
    return max(worst_s, before_s)


@inlined
def by_stage_seconds(t: Tables, bag: Bag, seconds: float) -> float:
    """What is added to the time of the pipelines, to first order: all replicas train fewer samples.

    Args:
        t: what it prices with.
        bag: a plan whose fillings are chosen.
        seconds: of its pipelines, placed as they are filled.
    """
    rate = 0.0
    slower = 0.0
    for k in range(bag.number[0]):
        f = bag.chosen[k]
        size = bag.size[k, f]
        longer_s = handing_seconds(
            t.option_type,
            t.option_tp,
            t.node_gpus,
            t.crossing_s[:, :, size],
            t.inside_s[:, size],
            bag.options[k],
            bag.depth[k],
        )
        samples = float(bag.replicas[k] * t.sizes[size])
        rate += samples / bag.tau_s[k, f]
        slower += samples / (bag.tau_s[k, f] + longer_s)
    return seconds * (rate / slower - 1.0)
