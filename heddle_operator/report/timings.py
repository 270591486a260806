"""The stalls of a job's changes of plan, part by part, from what the agents report.

Clocks of different machines cannot be compared, so every part is a distance on one rank's clock:
the rank that stood still the longest speaks for all.
Invariant: the parts sum to the stall; what training went on beside counts 0.  Of a loss `detect_s`
is all of the silence, from the end of the last step until the rank halted.
Source: design, section 4 (the names of the parts).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heddle_operator.state.epoch_record import EpochRecord
from heddle_operator.state.snapshot import Observed
from worker.contract import LAPS, SwitchRecord

PARTS = ("detect", "agree", "plan", "prepare", *LAPS)


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """One change of plan.

    Attributes:
        stall_s: from the end of the last old step to the start of the first new one.
        parts: seconds by `<part>_s`, in order.
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
    found = (_measured(observed.record(epoch), switches[epoch]) for epoch in sorted(switches))
    return tuple(change for change in found if change is not None)


def _measured(
    record: EpochRecord | None, switches: Iterable[SwitchRecord]
) -> Reconfiguration | None:
    rows = list(switches)
    stood = [s for s in rows if s.stopped_s is not None and s.first_step_s is not None]
    if record is None or not stood:
        return None
    slowest = max(stood, key=_stall_s)
    parts = dict.fromkeys((f"{name}_s" for name in PARTS), 0.0)
    before_s, end_s = slowest.stopped_s or 0.0, slowest.first_step_s or 0.0
    for name in LAPS:
        ended_s = end_s if name == LAPS[-1] else slowest.laps.get(name, before_s)
        parts[f"{name}_s"] = max(0.0, min(ended_s, end_s) - before_s)
        before_s = max(before_s, min(ended_s, end_s))
    if record.reason == "loss":
        parts |= _before_the_switch(record, slowest, parts["drain_s"])
    moved = sum(switch.bytes_sent for switch in rows)
    return Reconfiguration(record.epoch, record.reason, _stall_s(slowest), parts, moved)


def _before_the_switch(
    record: EpochRecord, slowest: SwitchRecord, waited_s: float
) -> dict[str, float]:
    """Nothing trained while a loss was noticed, planned for and prepared for: split that wait.

    The rank knows how long it took to notice; the time from adoption to the switch is known by the
    operator's clock; what is left between them is planning.
    """
    adopted_until_live_s = (record.closed_s or record.adopted_s) - record.adopted_s
    prepare_s = min(waited_s, max(0.0, adopted_until_live_s - (_stall_s(slowest) - waited_s)))
    detect_s = waited_s - prepare_s  # of a rank that did not halt, planning with it
    if slowest.halted_s is not None:
        detect_s = max(0.0, min(waited_s, slowest.halted_s - (slowest.stopped_s or 0.0)))
        prepare_s = min(prepare_s, waited_s - detect_s)
    plan_s = max(0.0, waited_s - detect_s - prepare_s)
    return {"detect_s": detect_s, "plan_s": plan_s, "prepare_s": prepare_s, "drain_s": 0.0}


def _stall_s(switch: SwitchRecord) -> float:
    return (switch.first_step_s or 0.0) - (switch.stopped_s or 0.0)
