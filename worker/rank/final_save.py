"""The final weights on their way to the disk, while the rank goes on hearing directives."""

from __future__ import annotations

from collections.abc import Sequence

from worker.error_kinds import Trouble
from worker.weights.saving import Saving, Step


class FinalSave:
    """One rank's part of the final weights.

    Attributes:
        divergence: on the step that ended the training; None: all steps are trained.
    """

    def __init__(self) -> None:
        self.divergence: Trouble | None = None
        self._saving: Saving | None = None

    @property
    def is_writing(self) -> bool:
        """Whether something is left to do."""
        return self._saving is not None and not self._saving.is_done

    @property
    def trouble(self) -> Trouble | None:
        """What is wrong now; None where this rank writes nothing."""
        if self._saving is None and self.divergence is None:
            return None
        error = self._saving.error if self._saving is not None else None
        if error is not None:
            return Trouble(error, "output")
        return self.divergence or Trouble()

    def begin(self, steps: Sequence[Step]) -> None:
        """Write, in the background."""
        self._saving = Saving(steps) if steps else None

    def cancel(self) -> None:
        """Stop writing, as another rank may write in the same folder; `again` goes on."""
        if self._saving is not None:
            self._saving.cancel()

    def again(self) -> None:
        """Begin the rest anew, after it was cancelled."""
        if self._saving is not None:
            self._saving = self._saving.again()

    def forget(self) -> None:
        """Stop writing for good: another epoch begins, and will write."""
        self.cancel()
        self._saving = None
