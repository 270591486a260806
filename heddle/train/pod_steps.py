"""An epoch's steps as one pod told them: the first, the newest, and how many there were."""

from __future__ import annotations

from dataclasses import dataclass, field

from worker.contract import StepRecord

STEPS_KEPT = 4_096  # newest steps of an epoch, of which medians and pictures are made


@dataclass(slots=True)
class PodSteps:
    """Steps of one epoch.

    Attributes:
        first: the earliest of them.
        newest: {step: its record} in order, at most `most`.
        count: how many different steps were told.
        memory_bytes: the most that a step of them says.
        most: steps that are kept.
    """

    first: StepRecord | None = None
    newest: dict[int, StepRecord] = field(default_factory=dict)
    count: int = 0
    memory_bytes: int = 0
    most: int = STEPS_KEPT

    def add(self, record: StepRecord) -> None:
        """Keep a step, unless it was told before or is older than all that are kept."""
        step = record.step
        if step in self.newest:
            self.newest[step] = record
            return
        last = next(reversed(self.newest), -1)
        if step < last and len(self.newest) >= self.most and step < next(iter(self.newest)):
            return
        self.count += 1
        self.memory_bytes = max(self.memory_bytes, record.memory_bytes or 0)
        if self.first is None or step < self.first.step:
            self.first = record
        self.newest[step] = record
        if step < last:
            self.newest = {at: self.newest[at] for at in sorted(self.newest)}
        if len(self.newest) > self.most:
            del self.newest[next(iter(self.newest))]

    def records(self) -> tuple[StepRecord, ...]:
        """The first step and the newest ones, in order."""
        newest = tuple(self.newest.values())
        if self.first is None or self.first.step in self.newest:
            return newest
        return (self.first, *newest)
