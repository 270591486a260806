"""The epoch records of one job in memory: created once, sealed once, closed once, as ConfigMaps.

Invariant: a write that contradicts what is there raises `ClusterConflict` and changes nothing.
Source: design, section 5, "Adoption is one atomic write".
"""

from __future__ import annotations

from dataclasses import replace

from heddle_operator.actions import AdoptPlan, CloseEpoch, SealEpoch
from heddle_operator.errors import ClusterConflict
from heddle_operator.snapshot import EpochRecord

# What an outcome may become: ranks that hold an epoch trump an abort that came too late.
_NEXT = {
    "open": ("live", "aborted", "complete", "failed"),
    "aborted": ("live", "complete", "failed"),
    "live": ("complete", "failed"),
    "complete": (),
    "failed": (),
}


class EpochRecords:
    """All records, oldest first."""

    def __init__(self) -> None:
        self._records: dict[int, EpochRecord] = {}

    @property
    def all(self) -> tuple[EpochRecord, ...]:
        """The records in order of their number."""
        return tuple(self._records[epoch] for epoch in sorted(self._records))

    def write(self, action: AdoptPlan | SealEpoch | CloseEpoch, now: float) -> EpochRecord:
        """Apply one write and answer the record.

        Raises:
            ClusterConflict: the record exists (adopt), is sealed (seal) or is closed otherwise
            (close).
        """
        match action:
            case AdoptPlan():
                return self._adopt(action, now)
            case SealEpoch():
                return self._seal(action)
            case CloseEpoch():
                return self._close(action, now)

    def _adopt(self, action: AdoptPlan, now: float) -> EpochRecord:
        newest = max(self._records, default=0)
        if action.epoch <= newest:
            raise ClusterConflict(
                f"epoch {action.epoch} was adopted already; the newest is {newest}"
            )
        record = EpochRecord(action.epoch, action.plan, action.reason, action.composition, now)
        return self._put(record)

    def _seal(self, action: SealEpoch) -> EpochRecord:
        record = self._get(action.epoch)
        if record.seal is not None or record.outcome != "open":
            raise ClusterConflict(f"epoch {action.epoch} was sealed or closed already")
        return self._put(replace(record, seal=action.seal))

    def _close(self, action: CloseEpoch, now: float) -> EpochRecord:
        record = self._get(action.epoch)
        if record.outcome == action.outcome:
            return record
        if action.outcome not in _NEXT[record.outcome]:
            raise ClusterConflict(
                f"epoch {action.epoch} is {record.outcome}; it cannot become {action.outcome}"
            )
        return self._put(
            replace(record, outcome=action.outcome, closed_s=now, message=action.message)
        )

    def _get(self, epoch: int) -> EpochRecord:
        if epoch not in self._records:
            raise ClusterConflict(f"epoch {epoch} is not on record")
        return self._records[epoch]

    def _put(self, record: EpochRecord) -> EpochRecord:
        self._records[record.epoch] = record
        return record
