"""Saves that the agents of a job tell of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from worker.contract import SaveRecord


@dataclass(frozen=True, slots=True)
class Saves:
    """The newest saves.

    Attributes:
        newest: the newest whole checkpoint, as the rank that committed it tells; None: none.
        failed: the newest save that failed after it, of whatever rank; None: none.
        num_bytes: that all ranks wrote for the newest.
        copy_s: the longest that training waited for the newest.
    """

    newest: SaveRecord | None
    failed: SaveRecord | None
    num_bytes: int
    copy_s: float

    @staticmethod
    def of(told: Iterable[SaveRecord]) -> Saves:
        """The newest of all that ranks told."""
        rows = tuple(told)
        whole = (save for save in rows if save.rank == 0 and save.outcome == "saved")
        newest = max(whole, key=_age, default=None)
        since = _age(newest) if newest is not None else (0, -1)
        later = (save for save in rows if _has_failed(save) and _age(save) > since)
        of_newest = [
            save
            for save in rows
            if save.step == since[1] and save.outcome == "saved" and save.epoch == since[0]
        ]
        return Saves(
            newest,
            max(later, key=lambda save: save.ended_unix_s, default=None),
            sum(save.num_bytes for save in of_newest),
            max((save.copy_s for save in of_newest), default=0.0),
        )


def _has_failed(save: SaveRecord) -> bool:
    return save.outcome == "failed" or (save.outcome == "given up" and save.error is not None)


def _age(save: SaveRecord) -> tuple[int, int]:
    return save.epoch, save.step
