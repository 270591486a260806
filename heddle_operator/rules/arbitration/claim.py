"""One job's part of the division of GPUs of several types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from heddle_operator.state.worth import Worth


@dataclass(slots=True, kw_only=True)
class Claim:
    """One job's part of the division.

    Attributes:
        rank: of its priority; 0 is the highest.
        least: GPUs that it is to be dealt at least.
        further: GPUs that it may be dealt at most.
        most: GPUs that it may use, with those that it holds.
        worth: of GPUs to it.
        held: GPUs by type that it has.
        rooms: GPUs by type that it could be dealt.
        dealt: GPUs by type that it gets.
    """

    job: str
    rank: int
    least: int
    further: float
    most: int
    worth: Worth
    held: Mapping[str, int]
    rooms: Mapping[str, int]
    dealt: dict[str, int] = field(default_factory=dict)
    _alone: float = 0.0
    _known: dict[tuple[int, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._alone = self._worth_with(self.rooms)

    def value(self, change: Mapping[str, int] | None = None) -> float:
        """Its throughput with what it gets, of what it would have alone; -inf if not allowed.

        Args:
            change: further GPUs by type; fewer where negative.
        """
        dealt = self.dealt
        if change:
            dealt = dict(dealt)
            for gpu_type, gpus in change.items():
                dealt[gpu_type] = dealt.get(gpu_type, 0) + gpus
                if not 0 <= dealt[gpu_type] <= self.rooms.get(gpu_type, 0):
                    return -math.inf
            if not self.least <= sum(dealt.values()) <= self.further:
                return -math.inf
        return self.with_dealt(dealt)

    def with_dealt(self, dealt: Mapping[str, int]) -> float:
        """Its throughput if it gets these GPUs by type, of what it would have alone."""
        return self._worth_with(dealt) / self._alone if self._alone else 0.0

    def room(self, gpu_type: str) -> int:
        """Further GPUs of a type that it may be dealt."""
        of_type = self.rooms.get(gpu_type, 0) - self.dealt.get(gpu_type, 0)
        return int(max(0, min(of_type, self.further - sum(self.dealt.values()))))

    def apply(self, change: Mapping[str, int]) -> None:
        """Get further GPUs."""
        for gpu_type, gpus in change.items():
            self.dealt[gpu_type] = self.dealt.get(gpu_type, 0) + gpus

    def _worth_with(self, dealt: Mapping[str, int]) -> float:
        key = tuple([self.held.get(t, 0) + dealt.get(t, 0) for t in self.rooms])
        if key not in self._known:
            counts = dict(zip(self.rooms, key, strict=True))
            self._known[key] = self.worth.of(counts, self.most)
        return self._known[key]
