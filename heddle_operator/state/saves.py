"""Saves that the agents of a job tell of.

Invariant: the clock of a pod decides nothing beyond what the operator has heard: a save ended after
the last report without it came, and before the first one with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from worker.contract import SaveRecord

Heard = tuple[float, float]  # when the last report without a save came, and the first one with it
_NEVER: Heard = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Told:
    """A save, with the times at which the saves of its agent were heard of."""

    save: SaveRecord
    heard: Mapping[SaveRecord, Heard]

    @property
    def age(self) -> tuple[int, int]:
        """Grows with each save of a rank."""
        return self.save.epoch, self.save.step

    def ended_s(self, clock_offset_s: float) -> float:
        """When it ended, by the operator's clock: as its pod says, within what was heard.

        Args:
            clock_offset_s: the wall clock less the operator's.
        """
        since_s, until_s = self.heard.get(self.save, _NEVER)
        return min(max(self.save.ended_unix_s - clock_offset_s, since_s), until_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """The newest saves.

    Attributes:
        newest: the newest whole checkpoint, as the rank that committed it tells; None: none.
        failed: the newest save that failed after it, of whatever rank; None: none.
        num_bytes: that all ranks wrote for the newest.
        copy_s: the longest that training waited for the newest.
        newest_s: when the newest ended, by the operator's clock; minus infinity: there is none.
        failed_s: when the failed one ended, by that clock; minus infinity: there is none.
    """

    newest: SaveRecord | None
    failed: SaveRecord | None
    num_bytes: int
    copy_s: float
    newest_s: float
    failed_s: float

    @property
    def began_s(self) -> float:
        """When the newest began, by the operator's clock; minus infinity: there is none."""
        return self.newest_s - (self.newest.seconds if self.newest is not None else 0.0)

    @staticmethod
    def of(told: Iterable[Told], clock_offset_s: float) -> Saves:
        """The newest of all that ranks told.

        Args:
            told: all saves.
            clock_offset_s: the wall clock less the operator's.
        """

        def ended_s(one: Told | None) -> float:
            return one.ended_s(clock_offset_s) if one is not None else -math.inf

        rows = tuple(told)
        whole = (one for one in rows if one.save.rank == 0 and one.save.outcome == "saved")
        newest = max(whole, key=lambda one: one.age, default=None)
        since = newest.age if newest is not None else (0, -1)
        later = (one for one in rows if _has_failed(one.save) and one.age > since)
        failed = max(later, key=ended_s, default=None)
        of_newest = [one.save for one in rows if one.age == since and one.save.outcome == "saved"]
        return Saves(
            newest=newest.save if newest is not None else None,
            failed=failed.save if failed is not None else None,
            num_bytes=sum(save.num_bytes for save in of_newest),
            copy_s=max((save.copy_s for save in of_newest), default=0.0),
            newest_s=ended_s(newest),
            failed_s=ended_s(failed),
        )


def _has_failed(save: SaveRecord) -> bool:
    return save.outcome == "failed" or (save.outcome == "given up" and save.error is not None)
