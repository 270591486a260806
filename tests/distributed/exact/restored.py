"""A job that ends after its first plan: its ranks save, and those of the second plan load."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from planner.model.shape import ModelShape
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.boxes import written
from worker.checkpoint.load import Newest, newest
from worker.checkpoint.manifest import SavedStep, digest_of
from worker.checkpoint.save import NotYet, commit, save_part
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.contract import Directive, Restore
from worker.state.held_state import HeldState

POLL_S = 0.05
LIMIT_S = 120.0


def save(folder: Path, model: ModelShape, move: Any, held: HeldState, progress: Any) -> None:
    """Save what one rank writes; rank 0 commits."""
    vault, spec = FolderVault(folder), move.directive.training
    attempt = Attempt(epoch=move.directive.epoch, step=progress.step)
    pieces = written(model, move.plan)
    save_part(vault, attempt, move.seat.rank, model, pieces[move.seat.rank], held.chunks)
    if move.seat.rank:
        return
    state = SavedStep.at(progress, spec, move.plan.digest)
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        try:
            assert commit(vault, attempt, len(pieces), model, state, "") is not None
            return
        except NotYet:
            time.sleep(POLL_S)
    raise TimeoutError(f"{attempt} lacks parts")


def restored(directive: Directive, folder: Path) -> Directive:
    """The directive as that of a start from the checkpoint of the epoch before."""
    vault, until_s = FolderVault(folder), time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        found = newest(vault)
        if isinstance(found, Newest) and found.attempt.epoch == directive.epoch - 1:
            break
        time.sleep(POLL_S)
    else:
        raise TimeoutError(f"no checkpoint in {folder}")
    epoch, step = found.attempt
    digest = digest_of(vault.read(found.attempt.manifest))
    return directive.model_copy(
        update={
            "reason": "start",
            "layouts": {},
            "members": tuple(
                member.model_copy(update={"holds": None})
                for member in directive.members
                if member.rank is not None
            ),
            "restore": Restore(path=str(folder), epoch=epoch, step=step, manifest=digest),
        }
    )
