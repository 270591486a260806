"""The vote of one change: the first outcome written to the epoch's store is the outcome.

A rank that has verified its new state adds its vote; whoever adds the last one writes `commit`, a
rank that failed or was told to abort writes `abort`, and only the first of these writes counts.  So
no two ranks ever see different outcomes.
Source: docs/decisions/0003; torchft's commit vote is the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Outcome = Literal["commit", "abort"]


class Vote:
    """The vote of one epoch among `size` ranks.

    Every method raises torch's DistError if the store is gone.
    """

    def __init__(self, store: Store, epoch: int, size: int) -> None:
        self._store, self._size = store, size
        self._votes, self._outcome = f"epoch{epoch}/votes", f"epoch{epoch}/outcome"

    def cast(self) -> None:
        """This rank has verified its new state."""
        if self._store.add(self._votes, 1) == self._size:
            self._write("commit")

    def abort(self) -> None:
        """This rank cannot go; without effect if the outcome is commit already."""
        self._write("abort")

    def outcome(self) -> Outcome | None:
        """The decision, or None so far."""
        if not self._store.check([self._outcome]):
            return None
        return "commit" if self._store.get(self._outcome) == b"commit" else "abort"

    def _write(self, outcome: Outcome) -> None:
        self._store.compare_set(self._outcome, "", outcome)
