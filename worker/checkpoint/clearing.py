"""Remove the checkpoints of a run that need not stay, once a newer one is whole.

Invariant: what another run has saved stays; two jobs of one name may save in one place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from worker.checkpoint.attempts import Attempt, best_of, complete, objects_of, outdated
from worker.checkpoint.manifest import InvalidManifest, Manifest
from worker.checkpoint.vaults.vault import BROKEN_OFF_S, Vault, VaultFailed
from worker.checkpoint_records import BestCheckpoint

LOG = logging.getLogger(__name__)


class Retention(NamedTuple):
    """The checkpoints of a run that stay.

    Attributes:
        last: number of the newest complete ones.
        best: the one with the lowest held-out loss stays too.
        run: id of the run; None: it has none, and all attempts count as its own.
        epochs_before: attempts of later epochs are its own where their manifest does not tell.
    """

    last: int
    best: bool = False
    run: str | None = None
    epochs_before: int = 0


class _Known(NamedTuple):
    """The run and the held-out loss of a complete attempt, as far as its manifest tells."""

    run: str | None = None
    loss: float | None = None


class Clearing:
    """The removal of old checkpoints by rank 0 of one epoch.

    Attributes:
        best: the run's checkpoint with the lowest held-out loss; None: none is known.
    """

    def __init__(self, kept: Retention) -> None:
        self.best: BestCheckpoint | None = None
        self._kept = kept
        self._known: dict[Attempt, _Known] = {}

    def clear(self, vault: Vault) -> None:
        """Remove what need not stay; the checkpoint is whole, whether that succeeds or not."""
        try:
            self._remove_outdated(vault)
        except VaultFailed as failure:
            LOG.warning("old checkpoints are not removed: %s", failure)
        try:
            vault.tidy(BROKEN_OFF_S)
        except VaultFailed as failure:
            LOG.warning("what broken writes left is not removed: %s", failure)

    def _remove_outdated(self, vault: Vault) -> None:
        names, kept = vault.names(), self._kept
        if kept.best or kept.run is not None:
            self._known = {
                attempt: self._known.get(attempt) or _read(vault, attempt)
                for attempt in complete(names)
            }
        found = objects_of(names)
        own = [name for attempt in found if self._is_own(attempt) for name in found[attempt]]
        losses = None
        if kept.best:
            losses = {attempt: self._known[attempt].loss for attempt in complete(own)}
            self.best = _best(losses)
        for name in outdated(own, kept.last, losses):
            vault.remove(name)

    def _is_own(self, attempt: Attempt) -> bool:
        run = self._known.get(attempt, _Known()).run
        if self._kept.run is None or run == self._kept.run:
            return True
        return run is None and attempt.epoch > self._kept.epochs_before


def _read(vault: Vault, attempt: Attempt) -> _Known:
    """What a manifest tells; nothing if it is damaged or gone.

    Raises:
        VaultFailed: the store fails.
    """
    try:
        manifest = Manifest.from_bytes(vault.read(attempt.manifest))
    except InvalidManifest:
        return _Known()
    except VaultFailed as failure:
        if failure.code == "missing":
            return _Known()
        raise
    return _Known(manifest.run, manifest.held_out_loss)


def _best(losses: Mapping[Attempt, float | None]) -> BestCheckpoint | None:
    attempt = best_of(losses)
    loss = losses[attempt] if attempt is not None else None
    if attempt is None or loss is None:
        return None
    return BestCheckpoint(epoch=attempt.epoch, step=attempt.step, held_out_loss=loss)
