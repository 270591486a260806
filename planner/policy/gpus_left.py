"""GPUs that a partial plan leaves: groups, stages, and replicas of its own.

Invariant: so many stages as are left can be packed, and no limit on GPUs is exceeded by them.
Source: Heddle, section 5.1 (feasibility masking).
Legend: C node classes, O options, Q limits on GPUs.
"""

from __future__ import annotations

from planner.estimator.jit import inlined, jit
from planner.estimator.tables import Ints
from planner.policy.features import ActionSpace


@jit
def gpus_left(m: ActionSpace, taken: Ints, used: Ints, left: Ints) -> int:
    """GPUs that TP groups of each option could still take [O], and how many GPUs there are in all.

    Closed form for nodes cut into blocks of powers of two: what larger groups take counts against
    smaller ones, and a group needs room among those of every smaller degree too.  What a limit on
    some classes leaves, each of them may take.
    """
    total = 0
    for c in range(len(m.class_type)):
        start, stop = m.first_option[c], m.first_option[c + 1]
        gone = 0
        for o in range(stop - 1, start - 1, -1):
            gone += taken[o] + used[o] * m.tp[o]
            left[o] = m.room[o] - gone
        for o in range(start + 1, stop):
            left[o] = min(left[o], left[o - 1])
        if stop > start:
            total += left[start]
    for q in range(len(m.limit)):
        spare = limit_left(m, taken, used, q)
        others = 0
        for c in range(len(m.class_type)):
            for o in range(m.first_option[c], m.first_option[c + 1]):
                if m.is_limited[q, c]:
                    left[o] = min(left[o], spare)
                elif o == m.first_option[c]:
                    others += left[o]
        total = min(total, spare + others)
    return total


@jit
def limit_left(m: ActionSpace, taken: Ints, used: Ints, q: int) -> int:
    """GPUs that a limit leaves."""
    spare: int = m.limit[q]
    for o in range(len(m.tp)):
        if m.is_limited[q, m.option_class[o]]:
            spare -= taken[o] + used[o] * m.tp[o]
    return spare


@jit
def stages_left(m: ActionSpace, taken: Ints, used: Ints, left: Ints) -> int:
    """How many stages of the smallest degree of their class the GPUs that are left make.

    Exact for limits on GPU types and on all GPUs: where the latter binds, small groups come first.
    """
    stages = 0
    if len(m.limit) == 0:
        for c in range(len(m.class_type)):
            o = m.first_option[c]
            if m.first_option[c + 1] > o:
                stages += left[o] // m.tp[o]
        return stages
    spare = m.gpus
    for q in range(len(m.limit)):
        if m.counts_all[q]:
            spare = min(spare, limit_left(m, taken, used, q))
    degree = 1
    while degree <= m.largest:
        found = min(groups_left(m, taken, used, left, degree), spare // degree)
        spare -= found * degree
        stages += found
        degree *= 2
    return stages


@jit
def groups_left(m: ActionSpace, taken: Ints, used: Ints, left: Ints, degree: int) -> int:
    """Groups of that degree that are left to the classes whose smallest it is.

    Limits in which all classes count are not looked at.
    """
    found = 0
    for q in range(-1, len(m.limit)):  # -1: classes that count in no other limit
        if q >= 0 and m.counts_all[q]:
            continue
        groups = 0
        for c in range(len(m.class_type)):
            o = m.first_option[c]
            counts = m.counts_alone[c] if q < 0 else m.is_limited[q, c]
            if counts and m.first_option[c + 1] > o and m.tp[o] == degree:
                groups += left[o] // degree
        if q >= 0:
            groups = min(groups, limit_left(m, taken, used, q) // degree)
        found += groups
    return found


@inlined
def stages_with(m: ActionSpace, taken: Ints, used: Ints, o: int, stages: int, left: Ints) -> int:
    """Stages of the smallest degree beside one more of option `o`, of so many that are left."""
    if len(m.limit):
        return stages_beside(m, taken, used, o, left)
    start = m.first_option[m.option_class[o]]
    least = m.tp[start]
    found: int = stages - left[start] // least + (left[start] - m.tp[o]) // least
    return found


@jit
def stages_beside(m: ActionSpace, taken: Ints, used: Ints, o: int, left: Ints) -> int:
    """Stages that are left beside one more of option `o`; `left` [O] is as before, afterwards."""
    used[o] += 1
    gpus_left(m, taken, used, left)
    stages = stages_left(m, taken, used, left)
    used[o] -= 1
    gpus_left(m, taken, used, left)
    return stages


@jit
def replicas_with(m: ActionSpace, taken: Ints, used: Ints, only: int, added: int) -> int:
    """How often the open template, with a stage of option `added` (or -1), fits into a class."""
    most = m.batch
    gone = 0
    need = 0
    for o in range(m.first_option[only + 1] - 1, m.first_option[only] - 1, -1):
        gone += taken[o]
        need += (used[o] + (1 if o == added else 0)) * m.tp[o]
        if need:
            most = min(most, (m.room[o] - gone) // need)
    for q in range(len(m.limit)):
        if m.is_limited[q, only]:
            gone = 0
            need = 0
            for o in range(len(m.tp)):
                if m.is_limited[q, m.option_class[o]]:
                    gone += taken[o]
                    need += (used[o] + (1 if o == added else 0)) * m.tp[o]
            if need:
                most = min(most, (m.limit[q] - gone) // need)
    return most
