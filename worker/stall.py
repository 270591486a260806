"""The stall of a change of plan, part by part, from what its ranks recorded.

Clocks of different machines cannot be compared.  So the rank that stood still the longest speaks
for all, and each part is a distance on its clock; of the operator's clock only distances count.
Where all who trained have left, one of them speaks until the vote, which all hear at once, and from
there one that joined.
Invariant: the parts sum to the stall; what training went on beside counts 0.  Of a loss `detect_s`
is all of the silence, from the end of the last step until the rank halted.
Source: design, section 4 (the names of the parts and what they span).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from worker.contract import LAPS, SwitchRecord

PARTS = ("detect", "agree", "plan", "prepare", *LAPS)


@dataclass(frozen=True, slots=True)
class LossTimes:
    """Times of a recovery by the operator's clock.

    Attributes:
        until_live_s: seconds from the adoption of the plan until all of its ranks trained.
        agree_s: seconds from the loss until a plan was asked for, where the operator tells them.
    """

    until_live_s: float
    agree_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stall:
    """How long no step was trained, and why.

    Attributes:
        stall_s: from the end of the last old step to the start of the first new one.
        parts: seconds by `<part>_s`, in order.
    """

    stall_s: float
    parts: Mapping[str, float]


def measure_stall(records: Iterable[SwitchRecord], loss: LossTimes | None = None) -> Stall | None:
    """The stall of one epoch's switch.

    Args:
        records: of the ranks that took part, as far as they are known.
        loss: given if ranks were lost; otherwise detection, planning and preparation ran beside
            the training and cost nothing.

    Returns:
        None while nobody has started the first new step, or nobody trained before.
    """
    known = tuple(records)
    stood = [r for r in known if r.stopped_s is not None and r.first_step_s is not None]
    stood = stood or _joined_at_the_vote(known)
    if not stood:
        return None
    slowest = max(stood, key=_stall_s)
    parts = dict.fromkeys((f"{name}_s" for name in PARTS), 0.0)
    before_s, end_s = slowest.stopped_s or 0.0, slowest.first_step_s or 0.0
    for name in LAPS:
        ended_s = end_s if name == LAPS[-1] else slowest.laps.get(name, before_s)
        now_s = min(max(before_s, ended_s), end_s)
        parts[f"{name}_s"], before_s = now_s - before_s, now_s
    if loss is not None:
        parts |= _before_the_switch(slowest, loss, parts["drain_s"])
    return Stall(_stall_s(slowest), parts)


def _joined_at_the_vote(records: Sequence[SwitchRecord]) -> list[SwitchRecord]:
    """The record of one that left, with what followed the vote from one that joined."""
    voted = [record for record in records if "vote" in record.laps]
    left = [(r.laps["vote"] - r.stopped_s, r) for r in voted if r.stopped_s is not None]
    came = [(r.first_step_s - r.laps["vote"], r) for r in voted if r.first_step_s is not None]
    if not left or not came:
        return []
    _, leaver = max(left, key=lambda pair: pair[0])
    after_s, joiner = max(came, key=lambda pair: pair[0])
    end_s = leaver.laps["vote"] + after_s
    flip_s = joiner.laps.get("flip", joiner.laps["vote"]) - joiner.laps["vote"]
    laps = leaver.laps | {"flip": leaver.laps["vote"] + flip_s}
    return [leaver.model_copy(update={"laps": laps, "first_step_s": end_s})]


def _before_the_switch(slowest: SwitchRecord, loss: LossTimes, waited_s: float) -> dict[str, float]:
    """Nothing trained while a loss was noticed, planned for and prepared for: split that wait.

    The rank knows how long it took to notice; the time from adoption to the switch is known by the
    operator's clock; what is left between them is planning.
    """
    prepare_s = min(waited_s, max(0.0, loss.until_live_s - (_stall_s(slowest) - waited_s)))
    detect_s = waited_s - prepare_s  # of an agent of an earlier version, planning with it
    if slowest.halted_s is not None:
        detect_s = max(0.0, min(waited_s, slowest.halted_s - (slowest.stopped_s or 0.0)))
        prepare_s = min(prepare_s, waited_s - detect_s)
    left_s = max(0.0, waited_s - detect_s - prepare_s)
    agree_s = min(left_s, loss.agree_s)
    before = (detect_s, agree_s, left_s - agree_s, prepare_s, 0.0)
    return dict(zip((f"{name}_s" for name in PARTS), before, strict=False))


def _stall_s(switch: SwitchRecord) -> float:
    return (switch.first_step_s or 0.0) - (switch.stopped_s or 0.0)
