"""Runs of neighbouring stages on the nodes of their class: which stand whole, and which are cut.

A fill puts a run of stages on one node, whatever else stands there.  Here the runs of all replicas
share the nodes, the largest first, each on the node that it fits best.  Where no node has room for
one, it takes the room of the emptiest, and its rest is a run of its own.  A run of one stage is a
TP group and cannot be cut: where one finds no room, all of these are put first.
Invariant: no more runs of any size stand whole than nodes have room for.
Source: best fit decreasing (Johnson, 1973).
Legend: K templates, T node classes, G GPUs of the largest node.
"""

from __future__ import annotations

from planner.estimator.fill.stage import run_of
from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Ints, Tables
from planner.estimator.unplaced_plan import UnplacedPlan

SEVERAL, ALONE = 0, 1  # runs of several stages, and of one
FREE, REST, CUT, PIECE = range(4)  # by GPUs: nodes; rests; runs that are cut; their largest piece


@inlined
def count_runs(t: Tables, plan: UnplacedPlan, runs: Ints) -> None:
    """Runs of all replicas [2, T, G + 1], of several stages and of one, by class and GPUs."""
    for kind in range(runs.shape[1]):
        for gpus in range(runs.shape[2]):
            runs[SEVERAL, kind, gpus] = runs[ALONE, kind, gpus] = 0
    for k in range(plan.number[0]):
        first = 0
        while first < plan.depth[k]:
            kind = t.option_type[plan.options[k, first]]
            stop, gpus = run_of(t, plan.options[k], plan.depth[k], first, 1, t.node_gpus)
            runs[ALONE if stop == first + 1 else SEVERAL, kind, gpus] += plan.replicas[k]
            first = stop


@inlined
def put_whole(gpus: int, count: int, free: Ints) -> int:
    """Put so many runs of so many GPUs on nodes [G + 1] by what they have free; how many do not."""
    for room in range(gpus, len(free)):
        if count == 0:
            break
        each = room // gpus
        number = min(free[room], count // each)
        free[room] -= number
        free[room - each * gpus] += number
        count -= number * each
        if count and free[room]:  # one node takes the rest
            free[room] -= 1
            free[room - count * gpus] += 1
            count = 0
    return count


@jit
def put_runs(several: Ints, alone: Ints, nodes: Ints, alone_first: bool, found: Ints) -> bool:
    """Put runs [G + 1] by GPUs on nodes [G + 1] by GPUs; whether those of one stage have room.

    `found` [4, G + 1] becomes what is left of nodes, and which runs are cut.
    """
    free = found[FREE]
    most = len(nodes) - 1
    for gpus in range(most + 1):
        free[gpus] = nodes[gpus]
        found[REST, gpus] = found[CUT, gpus] = 0
        found[PIECE, gpus] = gpus
    for gpus in range(most if alone_first else 0, 0, -1):
        put_whole(gpus, alone[gpus], free)
    for gpus in range(most, 0, -1):
        if not alone_first and put_whole(gpus, alone[gpus], free):
            return False
        left = put_whole(gpus, several[gpus] + found[REST, gpus], free)
        room = gpus - 1
        while left:
            while room and free[room] == 0:
                room -= 1
            if room == 0:
                break
            pieces = min(left, free[room])
            free[room] -= pieces
            free[0] += pieces
            found[REST, gpus - room] += pieces
            found[CUT, gpus] += pieces
            found[PIECE, gpus] = room
            left -= pieces
    return True


@inlined
def note_cut(t: Tables, plan: UnplacedPlan, kind: int, found: Ints, cut: Ints, piece: Ints) -> None:
    """Say which replicas have the runs of a class that are cut: those of the last templates."""
    for k in range(plan.number[0] - 1, -1, -1):
        first = 0
        while first < plan.depth[k]:
            is_here = t.option_type[plan.options[k, first]] == kind
            stop, gpus = run_of(t, plan.options[k], plan.depth[k], first, 1, t.node_gpus)
            number = min(found[CUT, gpus], plan.replicas[k])
            if is_here and stop > first + 1 and number:
                found[CUT, gpus] -= number
                cut[k] = max(cut[k], number)
                piece[k, kind] = min(piece[k, kind], found[PIECE, gpus])
            first = stop


@jit
def cut_runs(
    t: Tables, plan: UnplacedPlan, runs: Ints, found: Ints, cut: Ints, piece: Ints
) -> bool:
    """Put all runs of a plan on nodes; whether any is cut.

    Args:
        t: tables.
        plan: its runs.
        runs: [2, T, G + 1] room for them.
        found: [4, G + 1] room for what becomes of the nodes of a class.
        cut: [K] becomes how many replicas have a run that is cut.
        piece: [K, T] becomes the GPUs of the largest piece of theirs, or of a node.
    """
    count_runs(t, plan, runs)
    is_cut = False
    for kind in range(len(t.node_gpus)):
        if t.node_gpus[kind] == 1:
            continue
        several, alone = runs[SEVERAL, kind], runs[ALONE, kind]
        if not put_runs(several, alone, t.nodes[kind], False, found):
            put_runs(several, alone, t.nodes[kind], True, found)
        for gpus in range(found.shape[1]):
            if found[CUT, gpus]:
                if not is_cut:
                    for k in range(plan.number[0]):
                        cut[k] = 0
                        for one in range(len(t.node_gpus)):
                            piece[k, one] = t.node_gpus[one]
                is_cut = True
                note_cut(t, plan, kind, found, cut, piece)
                break
    return is_cut
