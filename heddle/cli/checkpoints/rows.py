"""Checkpoints for people and programs: a row of the list, and the content of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from heddle.cli.tables import aligned

if TYPE_CHECKING:
    from worker.checkpoint.listing import SavedCheckpoint

DIGEST_SHOWN = 8  # letters of a plan's digest in a table
SETTINGS = ("global_batch", "sequence_length", "seed", "precision", "steps", "learning_rate")
HEAD = (
    *("step", "epoch", "saved", "bytes", "files", "precision", "plan", "loss", "best"),
    "condition",
)
_KEYS = {"loss": "held_out_loss", "best": "is_best"}


def rows_of(found: Sequence[SavedCheckpoint]) -> list[dict[str, Any]]:
    """The rows of the list, as plain data."""
    from worker.checkpoint.listing import is_best

    return [{**_row_of(saved), "is_best": is_best(found, saved)} for saved in found]


def _row_of(saved: SavedCheckpoint) -> dict[str, Any]:
    manifest = saved.manifest
    return {
        "step": saved.attempt.step,
        "epoch": saved.attempt.epoch,
        "saved": _when(saved),
        "bytes": saved.num_bytes,
        "files": saved.files,
        "precision": manifest.training.get("precision") if manifest else None,
        "plan": manifest.plan_digest if manifest else None,
        "held_out_loss": manifest.held_out_loss if manifest else None,
        "condition": saved.condition,
        "fault": saved.fault,
    }


def checkpoint_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The list as a table; `-` where nothing is known."""
    return aligned(HEAD, [[_cell(key, row) for key in HEAD] for row in rows])


def content_of(saved: SavedCheckpoint, found: Sequence[SavedCheckpoint]) -> dict[str, Any]:
    """The content of a whole checkpoint among all, and the settings of its job.

    Raises:
        Damaged: its manifest cannot be read.
    """
    from worker.checkpoint.listing import is_best

    manifest = saved.read_manifest()
    weight = sum(one.num_bytes for one in manifest.boxes if one.part == "weight")
    return {
        "step": saved.attempt.step,
        "epoch": saved.attempt.epoch,
        "saved": _when(saved),
        "model": manifest.training.get("model"),
        **{key: manifest.training.get(key) for key in SETTINGS},
        "updates": manifest.updates,
        "loss_scale": manifest.loss_scale,
        "held_out_loss": manifest.held_out_loss,
        "is_best": is_best(found, saved),
        "plan": manifest.plan_digest,
        "bytes": saved.num_bytes,
        "weight_bytes": weight,
        "moment_bytes": sum(one.num_bytes for one in manifest.boxes) - weight,
        "files": len(manifest.files),
        "boxes": len(manifest.boxes),
    }


def _when(saved: SavedCheckpoint) -> str | None:
    """Time of a manifest in UTC, by ISO 8601; None: the vault tells none that a calendar has."""
    if saved.saved_at_s is None:
        return None
    try:
        return f"{datetime.fromtimestamp(saved.saved_at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return None


def _cell(key: str, row: Mapping[str, Any]) -> str:
    value = row[_KEYS.get(key, key)]
    if value is None:
        return "-"
    if key == "loss":
        return f"{value:.4f}"
    if key == "best":
        return "best" if value else "-"
    if key == "plan":
        return str(value)[:DIGEST_SHOWN]
    return f"{value:,}" if key == "bytes" else str(value)
