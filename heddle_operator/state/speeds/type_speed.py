"""How fast GPU types compute beside their profiles, as their nodes measure it.

A profile may be modelled, or measured elsewhere.  If it is wrong for a type, all nodes of the type
are off by the same factor: no node is slow, yet the choice between types and the predicted step
are wrong.  The speed of a type is the median over its nodes; what a node differs from it is the
node's own speed (`node_speed`).
Invariant: one slow node changes its type by nothing.  A type has another speed only after all that
was measured for a minute said so, so that no noise asks for a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.snapshot import Observed, ObservedNode
from heddle_operator.state.speeds.node_speed import doubted, planned_speeds
from heddle_operator.state.speeds.work import Work, faster_median, measured_work

LATE = 1.5  # times its prediction: what takes longer, or is faster so often, corrects the times


@dataclass(frozen=True, slots=True)
class KnownTypeSpeed:
    """Belief about the speed of a GPU type.

    Attributes:
        speed: of the speed that its profile gives it; 1 as profiled.
        differs_since_s: since when all that was measured differs from that; None: it does not.
    """

    speed: float = 1.0
    differs_since_s: float | None = None


def measured_types(
    observed: Observed, live: EpochRecord, work: tuple[Work, ...], own: Mapping[str, float]
) -> Mapping[str, float]:
    """By GPU type: the median over its nodes of their speeds beside the profile.

    A node has the speed of its slowest rank.  Of an even number of nodes the faster median counts:
    where one of two nodes is slow, it is that node, and not the type.

    Args:
        observed: supplies what the ranks measured, and what is stated of nodes.
        live: the epoch that they train.
        work: of its ranks, in rank order, with the seconds of the profile.
        own: by node that is known to be slow, its speed beside its peers; it is not the type's.
    """
    expected = {node.name: node.speed_factor * own.get(node.name, 1.0) for node in observed.nodes}
    paces: dict[str, dict[str, float]] = {}  # of each type's nodes: times the profile's seconds
    for measured in measured_work(observed, live, work):
        one = measured.work
        if one.profiled_s and not measured.is_late:
            predicted_s = one.profiled_s * one.micro_batches / expected.get(one.node, 1.0)
            nodes = paces.setdefault(one.gpu_type, {})
            nodes[one.node] = max(measured.seconds / predicted_s, nodes.get(one.node, 0.0))
    return {
        gpu_type: 1 / faster_median(nodes.values()) for gpu_type, nodes in sorted(paces.items())
    }


def types_at_start(
    nodes: Iterable[ObservedNode], live: EpochRecord | None
) -> Mapping[str, KnownTypeSpeed]:
    """Beliefs in the record of the live epoch: an operator that restarts goes on with them."""
    rows = tuple(nodes)
    planned = planned_speeds(rows, live)
    paces: dict[str, list[float]] = {}
    for node in rows:
        if node.name in planned:
            paces.setdefault(node.gpu_type, []).append(1 / planned[node.name])
    speeds = {gpu_type: 1 / faster_median(row) for gpu_type, row in paces.items()}
    return {
        gpu_type: KnownTypeSpeed(_rounded(speed))
        for gpu_type, speed in speeds.items()
        if _differs(speed, 1.0)
    }


def updated_types(
    known: Mapping[str, KnownTypeSpeed], measured: Mapping[str, float], now: float
) -> Mapping[str, KnownTypeSpeed]:
    """Beliefs after one more look; a type that no rank measures stays as it was.

    Args:
        known: what was believed.
        measured: speeds of the types that ranks measure now.
        now: by the clock of what is known.
    """
    found = {
        gpu_type: replace(held, differs_since_s=None)
        for gpu_type, held in known.items()
        if gpu_type not in measured
    }
    for gpu_type, speed in measured.items():
        found[gpu_type] = _measured(known.get(gpu_type, KnownTypeSpeed()), speed, now)
    return {
        gpu_type: held
        for gpu_type, held in sorted(found.items())
        if held.speed != 1.0 or held.differs_since_s is not None
    }


def type_speeds(nodes: Iterable[ObservedNode]) -> Mapping[str, float]:
    """By GPU type that differs from its profile: its speed."""
    return dict(sorted({n.gpu_type: n.type_speed for n in nodes if n.type_speed != 1}.items()))


def _measured(held: KnownTypeSpeed, speed: float, now: float) -> KnownTypeSpeed:
    """After one more measurement, which is believed if all for so long said the same."""
    differs = _differs(speed, held.speed)
    since_s, is_believed = doubted(held.differs_since_s, now, differs=differs)
    if not is_believed:
        return replace(held, differs_since_s=since_s)
    return KnownTypeSpeed(1.0 if not _differs(speed, 1.0) else _rounded(speed))


def _differs(speed: float, believed: float) -> bool:
    return max(speed / believed, believed / speed) > LATE


def _rounded(speed: float) -> float:
    return float(f"{speed:.2g}")
