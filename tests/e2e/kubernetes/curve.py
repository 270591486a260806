"""The loss curve of a job, put together from what all of its agents say.

Invariant: a record is kept under the pod, the epoch and the step that it is of; one that says
something else about the same is kept too, as a fault.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from worker.contract import StepRecord

TOLERANCE = 1e-5


@dataclass(slots=True)
class Curve:
    """All steps that were heard of, those that a loss undid among them."""

    records: dict[tuple[int, int, str], StepRecord] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)

    def add(self, pod: str, steps: Iterable[StepRecord]) -> None:
        """Take what a pod says of its steps; it may repeat itself."""
        for record in steps:
            held = self.records.setdefault((record.epoch, record.step, pod), record)
            if held != record:
                self.doubled.append(f"{pod} trained step {record.step} of {record.epoch} twice")

    @property
    def step(self) -> int:
        """The newest step; -1 before the first."""
        return max((step for _, step, _ in self.records), default=-1)

    def first_step_s(self, epoch: int) -> float:
        """When the first step of an epoch began, by the machine's monotonic clock."""
        return min(r.start_s for (found, _, _), r in self.records.items() if found == epoch)

    def gap_s(self, epoch: int) -> float:
        """The longest time without a step before an epoch, of pods that trained in both."""
        found: dict[str, tuple[list[float], list[float]]] = {}
        for (of, _, pod), record in self.records.items():
            ends, starts = found.setdefault(pod, ([], []))
            if of < epoch:
                ends.append(record.end_s)
            elif of == epoch:
                starts.append(record.start_s)
        return max(min(starts) - max(ends) for ends, starts in found.values() if ends and starts)

    def history(self) -> list[StepRecord]:
        """The final history: of each step the record of the newest epoch that trained it."""
        newest = {step: record for (_, step, _), record in sorted(self.records.items())}
        return [newest[step] for step in sorted(newest)]

    def gaps(self) -> list[str]:
        """Steps that were lost, or trained more than once, in words; a loss does the latter."""
        epochs: dict[int, set[int]] = {}
        for epoch, step, _ in self.records:
            epochs.setdefault(step, set()).add(epoch)
        again = [
            f"step {step} was trained in epochs {', '.join(map(str, sorted(of)))}"
            for step, of in sorted(epochs.items())
            if len(of) > 1
        ]
        missing = sorted(set(range(self.step + 1)) - set(epochs))
        return [*self.doubled, *(f"step {step} was never trained" for step in missing), *again]

    def faults(self, expected: Sequence[float]) -> list[str]:
        """What is wrong with the final history, in words.

        Args:
            expected: losses of one plain process, at least as many as the history has steps.
        """
        history = self.history()
        steps = [record.step for record in history]
        missing = sorted(set(range(self.step + 1)) - set(steps))
        found = [*self.doubled, *(f"step {step} was never trained" for step in missing)]
        for before, after in itertools.pairwise(history):
            if after.epoch < before.epoch:
                found.append(f"epoch {after.epoch} trained step {after.step} after a newer one")
        for record in history:
            distance = abs(record.loss - expected[record.step])
            if not distance <= TOLERANCE:
                found.append(f"the loss of step {record.step} is {distance:.1e} off")
        return found
