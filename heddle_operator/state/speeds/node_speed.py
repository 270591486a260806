"""How fast nodes compute, as their ranks measure it beside their peers; slow ones are remembered.

A straggler slows the whole job, as all ranks meet once a step.  A rank is compared only with ranks
on other nodes that do the same work: what a profile says of two kinds of work may be further off
than a straggler is.
Invariant: a node is slow or well again only after all that was measured for a minute said so, and
its speed is told in coarse steps, so that no noise asks for a plan.  One that the plan does without
cannot be measured; it is tried again after a pause that doubles.
Source: Kubernetes' back-off of containers that crash.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.snapshot import Observed, ObservedNode
from heddle_operator.state.speeds.work import Work, faster_median, measured_work
from planner.pauses import doubled_s
from planner.wording import counted

STEP = 0.05  # speeds are told in steps of this
SLOW = 0.9  # of its peers' speed: a node below is slow
WELL = 0.95  # a slow node that has this is well again
CHANGED = 0.1  # a slow node whose speed differs by this share of it has another one
BELIEVED_S = 60.0  # so long all that is measured must say so
FORGOTTEN_S = 600.0  # a slow node that is not measured is tried again after so long; then twice ...
FORGOTTEN_STEPS = 64  # and not before so many steps: a rank must train 16 to be measured
FORGOTTEN_LIMIT_S = 86_400.0


@dataclass(frozen=True, slots=True)
class KnownSpeed:
    """Belief about the speed of a node.

    Attributes:
        speed: of the speed of its peers; 1 is normal.
        measured_s: when it was measured last.
        differs_since_s: since when all that was measured differs from that; None: it does not.
        times: how often it was found slow, since it was measured to be well.
    """

    speed: float
    measured_s: float
    differs_since_s: float | None = None
    times: int = 0


def measured_speeds(
    observed: Observed, live: EpochRecord, work: tuple[Work, ...]
) -> Mapping[str, float]:
    """By node: the speed of its slowest rank beside its peers, at most 1; absent without peers.

    Args:
        observed: supplies what the ranks measured, and what is stated of nodes.
        live: the epoch that they train.
        work: of its ranks, in rank order.
    """
    stated = {node.name: node.speed_factor for node in observed.nodes}
    paces: dict[Hashable, dict[str, float]] = {}
    for measured in measured_work(observed, live, work):
        one = measured.work
        pace = measured.seconds * stated.get(one.node, 1.0) / one.micro_batches
        nodes = paces.setdefault(one.kind, {})
        nodes[one.node] = max(pace, nodes.get(one.node, 0.0))
    found: dict[str, float] = {}
    for nodes in paces.values():
        usual = faster_median(nodes.values())
        for node, pace in nodes.items() if len(nodes) > 1 else ():
            found[node] = min(found.get(node, 1.0), usual / pace)
    return found


def known_at_start(
    nodes: Iterable[ObservedNode],
    live: EpochRecord | None,
    now: float,
    types: Mapping[str, float],
) -> Mapping[str, KnownSpeed]:
    """Beliefs in the record of the live epoch: an operator that restarts goes on with them.

    Args:
        nodes: that are there.
        live: supplies the speeds that were planned with.
        now: by the clock of what is known.
        types: speed by GPU type that is known to differ from its profile.
    """
    planned = planned_speeds(nodes, live)
    speeds = {
        node.name: _coarse(planned[node.name] / types.get(node.gpu_type, 1.0))
        for node in nodes
        if node.name in planned
    }
    return {name: KnownSpeed(speed, now, times=1) for name, speed in speeds.items() if speed < 1}


def planned_speeds(nodes: Iterable[ObservedNode], live: EpochRecord | None) -> dict[str, float]:
    """By node of the live plan's composition: its speed there, without what is stated of it."""
    planned = {node.name: node.speed_factor for node in live.composition.nodes} if live else {}
    return {
        node.name: planned[node.name] / node.speed_factor for node in nodes if node.name in planned
    }


def updated(
    known: Mapping[str, KnownSpeed],
    nodes: Iterable[ObservedNode],
    measured: Mapping[str, float],
    now: float,
    step_s: float = 0.0,
) -> Mapping[str, KnownSpeed]:
    """Beliefs after one more look; a node that is gone is forgotten.

    Args:
        known: what was believed.
        nodes: that are there.
        measured: speeds of those that are measured now.
        now: by the clock of what is known.
        step_s: what a step takes.
    """
    found = {}
    for node in nodes:
        held = known.get(node.name, KnownSpeed(1.0, now))
        speed = measured.get(node.name)
        found[node.name] = (
            _unmeasured(held, now, step_s) if speed is None else _measured(held, speed, now)
        )
    return found


def slow_nodes(observed: Observed) -> Mapping[str, str]:
    """By node that is known to be slow: how slow it is, in words."""
    return {
        node.name: f"node {node.name} computes at {node.measured_speed:g} of the speed that its "
        "type has"
        for node in observed.nodes
        if node.measured_speed < 1
    }


def slow_in_plan(observed: Observed, live: EpochRecord) -> str:
    """The slow nodes that the live plan uses, in words; "" for none."""
    said = slow_nodes(observed)
    used = [said[node] for node in live.plan.nodes if node in said]
    verb = "is" if len(used) == 2 else "are"
    more = f", and {counted(len(used) - 1, 'more node')} {verb} slow" if len(used) > 1 else ""
    return f"{used[0]}{more}" if used else ""


def _coarse(speed: float) -> float:
    return min(1.0, max(STEP, round(round(speed / STEP) * STEP, 2)))


def doubted(since_s: float | None, now: float, *, differs: bool) -> tuple[float | None, bool]:
    """A belief after one more measurement: since when all differ, and whether that is believed.

    Args:
        since_s: since when all that was measured before differs; None: it does not.
        now: by the same clock.
        differs: whether this measurement does.
    """
    if not differs:
        return None, False
    since_s = now if since_s is None else since_s
    return since_s, now - since_s >= BELIEVED_S


def _measured(held: KnownSpeed, speed: float, now: float) -> KnownSpeed:
    """After one more measurement, which is believed if all for so long said the same."""
    held = replace(held, measured_s=now)
    is_well = speed >= WELL
    if held.speed < 1:
        differs = is_well or abs(speed - held.speed) > CHANGED * held.speed
    else:
        differs = speed < SLOW
    since_s, is_believed = doubted(held.differs_since_s, now, differs=differs)
    if not is_believed:
        return replace(held, differs_since_s=since_s)
    if is_well:
        return KnownSpeed(1.0, now)
    return KnownSpeed(_coarse(speed), now, None, held.times + (held.speed == 1))


def _unmeasured(held: KnownSpeed, now: float, step_s: float) -> KnownSpeed:
    """Without a measurement what differed must be seen anew, and in the end a node is tried."""
    pause_s = doubled_s(FORGOTTEN_S, max(held.times, 1), FORGOTTEN_LIMIT_S)
    if held.speed < 1 and now - held.measured_s >= max(pause_s, FORGOTTEN_STEPS * step_s):
        return KnownSpeed(1.0, now, None, held.times)
    return replace(held, differs_since_s=None)
