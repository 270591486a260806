"""The epoch records of one job in memory: as the ConfigMaps: created, sealed, closed, pruned.

Invariant: a write that contradicts what is there raises `ClusterConflict` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from heddle_operator.apis.errors import ClusterConflict
from heddle_operator.state.actions import AdoptPlan, CloseEpoch, PruneEpoch, SealEpoch
from heddle_operator.state.epoch_record import EpochRecord, suspended_s

# What an outcome may become: ranks that hold an epoch count more than an abort that came too late.
_NEXT = {
    "open": ("live", "aborted", "lost", "suspended", "complete", "failed"),
    "aborted": ("live", "lost", "suspended", "complete", "failed"),
    "live": ("lost", "suspended", "complete", "failed"),
    "lost": ("failed",),
    "suspended": ("failed",),
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

    def prune(self, action: PruneEpoch) -> None:
        """Forget a record.

        Raises:
            ClusterConflict: it is the newest.
        """
        check_prunable(self._records, action)
        self._records.pop(action.epoch, None)

    def _adopt(self, action: AdoptPlan, now: float) -> EpochRecord:
        return self._put(adopted(self.all, action, now))

    def _seal(self, action: SealEpoch) -> EpochRecord:
        return self._put(sealed(self._get(action.epoch), action))

    def _close(self, action: CloseEpoch, now: float) -> EpochRecord:
        return self._put(closed(self._get(action.epoch), action, now))

    def _get(self, epoch: int) -> EpochRecord:
        if epoch not in self._records:
            raise ClusterConflict(f"epoch {epoch} is not on record")
        return self._records[epoch]

    def _put(self, record: EpochRecord) -> EpochRecord:
        self._records[record.epoch] = record
        return record


def adopted(records: Iterable[EpochRecord], action: AdoptPlan, now: float) -> EpochRecord:
    """The record of a new epoch.

    Raises:
        ClusterConflict: its number is not above all others.
    """
    before = sorted(records, key=lambda record: record.epoch)
    newest = before[-1].epoch if before else 0
    if action.epoch <= newest:
        raise ClusterConflict(f"epoch {action.epoch} was adopted already; the newest is {newest}")
    return EpochRecord(
        epoch=action.epoch,
        plan=action.plan,
        reason=action.reason,
        composition=action.composition,
        adopted_s=now,
        step_s=action.step_s,
        group_bytes=action.group_bytes,
        cause=action.cause,
        steps=action.steps,
        is_emergency=action.is_emergency,
        max_gpus=action.max_gpus,
        moved_by=action.moved_by,
        suspended_s=suspended_s(before, now),
    )


def check_prunable(epochs: Iterable[int], action: PruneEpoch) -> None:
    """Numbers only grow because the newest record stays.

    Raises:
        ClusterConflict: it is the newest record that is to go.
    """
    if action.epoch == max(epochs, default=0):
        raise ClusterConflict(f"epoch {action.epoch} is the newest; its number would be used again")


def sealed(record: EpochRecord, action: SealEpoch) -> EpochRecord:
    """The record with its seal.

    Raises:
        ClusterConflict: it is sealed or closed.
    """
    if record.seal is not None or record.outcome != "open":
        raise ClusterConflict(f"epoch {action.epoch} was sealed or closed already")
    return replace(record, seal=action.seal)


def closed(record: EpochRecord, action: CloseEpoch, now: float) -> EpochRecord:
    """The record with its outcome; the same one if it has that outcome already.

    Raises:
        ClusterConflict: it has another outcome that cannot become this one.
    """
    if record.outcome == action.outcome:
        return record
    if action.outcome not in _NEXT[record.outcome]:
        raise ClusterConflict(
            f"epoch {action.epoch} is {record.outcome}; it cannot become {action.outcome}"
        )
    return replace(
        record,
        outcome=action.outcome,
        closed_s=now,
        message=action.message,
        failures=action.failures,
        start_failures=action.start_failures,
        failed=action.failed,
        step=action.step,
        by_suspension=action.by_suspension,
    )
