"""Attempts in a vault as a person sees them: which of them are whole, how large, and since when.

Invariant: nothing but manifests is read; `worker.checkpoint.verify` reads all.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from worker.checkpoint.attempts import MANIFEST, Attempt, best_of, objects_of
from worker.checkpoint.manifest import Damaged, InvalidManifest, Manifest
from worker.checkpoint.vaults.open_vault import folder_of, open_vault
from worker.checkpoint.vaults.vault import Facts, Vault, VaultFailed
from worker.errors import WorkerError

Condition = Literal["whole", "incomplete", "damaged", "newer"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)


class NoCheckpoint(WorkerError):
    """There is no such checkpoint; `code` is `missing`, `empty`, `step` or `whole`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """An attempt in a vault.

    Attributes:
        attempt: its name.
        condition: `incomplete` has no manifest, `newer` has that of a newer Heddle.
        fault: why it is not whole, one sentence; None: it is.
        manifest: None if it cannot be read.
        objects: names of its objects in the vault.
        files: with numbers.
        num_bytes: of its files by the manifest, else of its objects; None: the vault cannot tell.
        saved_at_s: Unix time of its manifest; None: it has none, or the vault cannot tell.
    """

    attempt: Attempt
    condition: Condition
    fault: str | None
    manifest: Manifest | None
    objects: tuple[str, ...]
    files: int
    num_bytes: int | None
    saved_at_s: float | None

    def read_manifest(self) -> Manifest:
        """The manifest.

        Raises:
            Damaged: it cannot be read.
        """
        if self.manifest is None:
            code = "newer" if self.condition == "newer" else "damaged"
            raise Damaged(self.attempt.manifest, self.fault or "there is no manifest", code)
        return self.manifest


def open_saved(path: str) -> tuple[Vault, tuple[SavedCheckpoint, ...]]:
    """The vault at a path, and its attempts.

    Raises:
        VaultFailed: there is no such vault, or it cannot be listed.
        NoCheckpoint: there is no folder, or it holds no attempt.
    """
    vault, folder = open_vault(path), folder_of(path)
    found = saved_in(vault)
    if not found and folder is not None and not folder.exists():
        raise NoCheckpoint(
            f"there is no folder {folder}; give the folder of a job's checkpoints", code="missing"
        )
    if not found:
        inner = None if folder is None else _saves_below(folder)
        wanted = "the folder of a job's checkpoints" if inner is None else str(inner)
        raise NoCheckpoint(f"{path} holds no checkpoint; give {wanted}", code="empty")
    return vault, found


def _saves_below(folder: Path) -> Path | None:
    """A job's folder of checkpoints in that one: of a volume, or of the output of a run."""
    for pattern in ("*/*/", "checkpoints/*/*/"):
        for each in folder.glob(pattern):
            if objects_of([f"{each.name}/{MANIFEST}"]):
                return each.parent
    return None


def saved_in(vault: Vault) -> tuple[SavedCheckpoint, ...]:
    """All attempts, the newest first.

    Raises:
        VaultFailed: the names cannot be listed.
    """
    facts = vault.facts()
    found = objects_of(facts)
    return tuple(_saved(vault, attempt, found[attempt], facts) for attempt in reversed(found))


def chosen(
    found: Sequence[SavedCheckpoint],
    step: int | None = None,
    among: Container[Condition] = ("whole",),
) -> SavedCheckpoint:
    """The newest attempt in one of these conditions, of all steps or of one.

    Args:
        found: the newest first.
        step: None for all.
        among: conditions that count.

    Raises:
        NoCheckpoint: no attempt has the step, or none of them has such a condition.
    """
    mine = [saved for saved in found if step is None or saved.attempt.step == step]
    if not mine and step is not None:
        raise NoCheckpoint(_nearest(found, step), code="step")
    for saved in mine:
        if saved.condition in among:
            return saved
    which = f"no checkpoint {'is whole' if step is None else f'of step {step} is whole'}"
    raise NoCheckpoint(
        f"{which}, the newest is {mine[0].condition} ({mine[0].fault}); "
        "`heddle checkpoint ls` lists all",
        code="whole",
    )


def kept(found: Sequence[SavedCheckpoint], last: int) -> tuple[SavedCheckpoint, ...]:
    """Attempts that stay so that the newest `last` checkpoints do.

    The best stays too, and so do attempts that are newer than all of these: one of them may be
    under way.

    Raises:
        NoCheckpoint: none is whole, so that nothing would be left.
    """
    newest = chosen(found, among=_LOADED).attempt
    mine = [saved for saved in found if saved.condition in _LOADED][:last]
    return tuple(
        saved for saved in found if saved in mine or saved.attempt > newest or is_best(found, saved)
    )


def is_best(found: Sequence[SavedCheckpoint], saved: SavedCheckpoint) -> bool:
    """Whether no whole attempt has a lower held-out loss, and no newer one such a loss."""
    losses = {one.attempt: _loss_of(one) for one in found if one.condition == "whole"}
    return saved.attempt == best_of(losses)


def is_needed(found: Sequence[SavedCheckpoint], saved: SavedCheckpoint) -> bool:
    """Whether a job would go on from an attempt, or may be saving it now."""
    newest = next((one.attempt for one in found if one.condition in _LOADED), None)
    if newest is None:
        return saved.condition == "incomplete"
    is_newer = saved.attempt > newest and saved.condition == "incomplete"
    return is_newer or saved.attempt == newest


_LOADED: tuple[Condition, ...] = ("whole", "newer")  # whoever wrote a newer one loads it


def _loss_of(saved: SavedCheckpoint) -> float | None:
    return saved.manifest.held_out_loss if saved.manifest is not None else None


def _saved(
    vault: Vault, attempt: Attempt, objects: tuple[str, ...], facts: Mapping[str, Facts]
) -> SavedCheckpoint:
    manifest: Manifest | None = None
    condition: Condition = "incomplete"
    fault: str | None = f"{attempt} has no manifest"
    if attempt.manifest in objects:
        try:
            manifest = Manifest.from_bytes(vault.read(attempt.manifest))
            fault = _fault(attempt, manifest, objects, facts)
            condition = "damaged" if fault else "whole"
        except (InvalidManifest, VaultFailed) as error:
            condition = "newer" if error.code == "newer" else "damaged"
            fault = f"{attempt}: {error}"
    num_bytes: int | None = None
    if manifest is not None:
        num_bytes = sum(manifest.files.values())
    elif facts:
        num_bytes = sum(facts[name].num_bytes for name in objects)
    of_manifest = facts.get(attempt.manifest)
    return SavedCheckpoint(
        attempt=attempt,
        condition=condition,
        fault=fault,
        manifest=manifest,
        objects=objects,
        files=sum(name.endswith(".safetensors") for name in objects),
        num_bytes=num_bytes,
        saved_at_s=of_manifest.saved_at_s if of_manifest else None,
    )


def _fault(
    attempt: Attempt, manifest: Manifest, objects: tuple[str, ...], facts: Mapping[str, Facts]
) -> str | None:
    """Why the files are not those of the manifest, as far as their names and sizes say."""
    for file, size in manifest.files.items():
        name = attempt.name(file)
        if name not in objects:
            return f"{name} is missing; copy it again, or remove step {attempt.step}"
        if name in facts and facts[name].num_bytes != size:
            return (
                f"{name} has {facts[name].num_bytes:,} of {size:,} bytes; copy it again, or "
                f"remove step {attempt.step}"
            )
    return None


def _nearest(found: Sequence[SavedCheckpoint], step: int) -> str:
    steps = sorted({saved.attempt.step for saved in found}, key=lambda one: (abs(one - step), one))
    return f"no checkpoint has step {step}; the nearest has step {steps[0]}"
