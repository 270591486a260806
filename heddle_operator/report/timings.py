"""The stalls of a job's changes of plan, from what the agents report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.snapshot import Observed
from worker.contract import SwitchRecord
from worker.stall import LossTimes, Stall, measure_stall


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """One change of plan.

    Attributes:
        stall_s: from the end of the last old step to the start of the first new one.
        parts: seconds by `<part>_s`, in order; they sum to the stall.
        bytes_moved: that all ranks sent.
    """

    epoch: int
    reason: str
    stall_s: float
    parts: Mapping[str, float]
    bytes_moved: int


def reconfigurations(observed: Observed) -> tuple[Reconfiguration, ...]:
    """All changes that agents still tell of, oldest first; the start of a job is none."""
    switches: dict[int, list[SwitchRecord]] = {}
    for agent in observed.agents.values():
        for switch in agent.report.switches if agent.report else ():
            switches.setdefault(switch.epoch, []).append(switch)
    found = []
    for epoch in sorted(switches):
        record, rows = observed.record(epoch), switches[epoch]
        stall = stall_of(record, rows) if record is not None else None
        if record is not None and stall is not None:
            moved = sum(switch.bytes_sent for switch in rows)
            found.append(Reconfiguration(epoch, record.reason, stall.stall_s, stall.parts, moved))
    return tuple(found)


def stall_of(
    record: EpochRecord, switches: Iterable[SwitchRecord], agree_s: float = 0.0
) -> Stall | None:
    """The stall of the switch to an epoch; None until its first step has started.

    Args:
        record: of the epoch.
        switches: of its ranks.
        agree_s: seconds from a loss until a plan was asked for, where somebody saw them.
    """
    if record.reason != "loss":
        return measure_stall(switches)
    until_live_s = (record.closed_s or record.adopted_s) - record.adopted_s
    return measure_stall(switches, LossTimes(until_live_s, agree_s))
