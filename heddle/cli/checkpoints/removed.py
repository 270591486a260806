"""The removal of checkpoints from a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from planner.errors import InvalidRequest

if TYPE_CHECKING:
    from worker.checkpoint.listing import SavedCheckpoint


def remove_from(
    path: str, step: int | None, all_but: int | None, agrees: Callable[[str], bool] | None
) -> dict[str, Any]:
    """Remove checkpoints, the manifest of each before its files, and what dead writers left.

    Args:
        path: of the checkpoints.
        step: whose checkpoints go; None: `all_but` says which.
        all_but: number of whole checkpoints that stay, the newest ones; None: `step` says which.
        agrees: is asked before checkpoints of these names go; None: also the newest whole one goes,
            and nobody is asked.

    Returns:
        What was removed and what is kept.

    Raises:
        InvalidRequest: one of them is still needed, and nobody said that it may go.
    """
    from worker.checkpoint.attempts import to_remove
    from worker.checkpoint.listing import is_needed, open_saved

    _tidy(path)
    vault, found = open_saved(path)
    gone = _chosen(found, step, all_but)
    if agrees is not None:
        needed = [str(saved.attempt) for saved in gone if is_needed(found, saved)]
        if needed:
            raise InvalidRequest(
                f"{needed[0]} is the newest whole checkpoint, or a save under way; give --yes to "
                "remove it",
                field="yes",
                code="Refused",
            )
        if gone and not agrees(", ".join(str(saved.attempt) for saved in gone)):
            gone = []
    for saved in reversed(gone):  # the newest lasts longest
        for name in to_remove(saved.attempt, saved.objects):
            vault.remove(name)
    return {
        "path": path,
        "removed": [str(saved.attempt) for saved in gone],
        "bytes": sum(saved.num_bytes or 0 for saved in gone),
        "kept": [str(saved.attempt) for saved in found if saved not in gone],
    }


def _chosen(
    found: Sequence[SavedCheckpoint], step: int | None, all_but: int | None
) -> list[SavedCheckpoint]:
    """The checkpoints that go, the newest first."""
    from worker.checkpoint.listing import CONDITIONS, chosen, kept

    if all_but is not None:
        stays = kept(found, all_but)
        return [saved for saved in found if saved not in stays]
    chosen(found, step, among=CONDITIONS)  # or it names the nearest
    return [saved for saved in found if saved.attempt.step == step]


def _tidy(path: str) -> None:
    """Remove what broken writes left, as far as the store lets it."""
    from worker.checkpoint.vaults.open_vault import open_vault
    from worker.checkpoint.vaults.vault import BROKEN_OFF_S, VaultFailed

    with contextlib.suppress(VaultFailed):  # whoever lists it next says why
        open_vault(path).tidy(BROKEN_OFF_S)
