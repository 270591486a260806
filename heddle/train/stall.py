"""The stall of a reconfiguration, part by part, from what all ranks recorded.

Invariant: a part ends when the last rank has ended it, and starts where the part before ended; so
the parts sum to the stall by construction.  All times are of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.contract import LAPS, SwitchRecord

PARTS = ("detect", "agree", "plan", "prepare", *LAPS)


@dataclass(frozen=True, slots=True)
class LossTimes:
    """Times of a loss that operator and harness saw, by the monotonic clock.

    Attributes:
        killed_s: the kill, where the harness knows it.
        halted_s: the operator saw the loss; where the survivors say when they halted, that counts.
        agreed_s: what they hold was known, and a plan asked for.
        adopted_s: the plan was adopted.
        prepared_s: all members were prepared.
    """

    killed_s: float | None
    halted_s: float
    agreed_s: float
    adopted_s: float
    prepared_s: float


@dataclass(frozen=True, slots=True)
class Stall:
    """How long no step was trained, and why.

    Attributes:
        stall_s: from the end of the last old step to the start of the first new one.
        parts: seconds by `<part>_s`, in order; of a loss `detect_s` is all of the silence, from
            the end of the last step until the survivors had halted.
        from_kill_s: from the kill to the start of the first new step; None where nobody knows it.
    """

    stall_s: float
    parts: Mapping[str, float]
    from_kill_s: float | None = None


def measure_stall(records: Sequence[SwitchRecord], loss: LossTimes | None = None) -> Stall | None:
    """The stall of one epoch's switch.

    Args:
        records: of all ranks that took part.
        loss: given if ranks were lost; otherwise detection, planning and preparation ran beside
            the training and cost nothing.

    Returns:
        None while no new rank has started its first step, or if nothing had trained before.
    """
    started = [r.first_step_s for r in records if r.first_step_s is not None]
    stopped = [r.stopped_s for r in records if r.stopped_s is not None]
    if not started or not stopped:
        return None
    begin_s, end_s = max(stopped), max(started)
    ends, from_kill_s = [begin_s] * 4, None
    if loss is not None:
        halted = [r.halted_s for r in records if r.halted_s is not None]
        halted_s = max(halted, default=loss.halted_s)
        ends = [halted_s, loss.agreed_s, loss.adopted_s, loss.prepared_s]
        from_kill_s = end_s - loss.killed_s if loss.killed_s is not None else None
    for name in LAPS[:-1]:
        laps = [record.laps[name] for record in records if name in record.laps]
        ends.append(max(laps, default=begin_s))
    ends.append(end_s)
    parts, before_s = {}, begin_s
    for name, ended_s in zip(PARTS, ends, strict=True):
        now_s = min(max(before_s, ended_s), end_s)
        parts[f"{name}_s"] = now_s - before_s
        before_s = now_s
    return Stall(end_s - begin_s, parts, from_kill_s)


def stall_line(
    reason: str,
    stall_s: float,
    parts: Mapping[str, float],
    restart_s: float | None,
    from_kill_s: float | None = None,
) -> str:
    """One reconfiguration: its stall by part, beside the time from the kill and a restart's."""
    shown = " + ".join(
        f"{name.removesuffix('_s')} {1000 * value:.0f}"
        for name, value in parts.items()
        if value >= 5e-4
    )
    line = f"{reason}: stall {1000 * stall_s:.0f} ms = {shown}"
    if from_kill_s is not None:
        line += f", {1000 * from_kill_s:.0f} ms from the kill"
    if restart_s is None:
        return line
    return f"{line}; a cold restart takes {restart_s:.1f} s and loses steps since the checkpoint"
