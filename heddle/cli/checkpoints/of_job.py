"""The checkpoints of a job of the cluster, as its status has them: the newest, and the best.

Pure: from a HeddleJob object to plain data and lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heddle.cli.tables import aligned
from heddle_operator.apis.errors import OperatorError

HEAD = ("step", "saved", "bytes", "loss", "best")


def job_rows(job: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The newest whole checkpoint, and the best one if it is another.

    Args:
        job: its name, for messages.
        body: the HeddleJob.

    Raises:
        OperatorError: the job saves no checkpoints, or has saved none.
    """
    saved = saved_of(job, body)
    best = saved.get("bestStep")
    rows = [
        {
            "step": saved["step"],
            "saved": saved.get("savedAt"),
            "bytes": saved.get("bytes"),
            "held_out_loss": saved.get("heldOutLoss"),
            "is_best": saved["step"] == best,
        }
    ]
    if best not in (None, saved["step"]):
        loss = saved.get("bestHeldOutLoss")
        unknown = {"saved": None, "bytes": None}
        rows.append({"step": best, **unknown, "held_out_loss": loss, "is_best": True})
    return rows


def job_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table; `-` where the status tells nothing."""
    return aligned(
        HEAD,
        [
            (
                str(row["step"]),
                row["saved"] or "-",
                f"{row['bytes']:,}" if row["bytes"] is not None else "-",
                f"{row['held_out_loss']:.4f}" if row["held_out_loss"] is not None else "-",
                "best" if row["is_best"] else "-",
            )
            for row in rows
        ],
    )


def job_content(job: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """All that is known of the job's checkpoints.

    Raises:
        OperatorError: the job saves no checkpoints, or has saved none.
    """
    saved, checkpoint = saved_of(job, body), body["spec"]["checkpoint"]
    metadata = body["metadata"]
    return {
        "job": f"{metadata.get('namespace', 'default')}/{metadata['name']}",
        "path": f"{checkpoint['path'].rstrip('/')}/{metadata['name']}",
        "phase": body["status"].get("phase"),
        "step": saved["step"],
        "saved": saved.get("savedAt"),
        "bytes": saved.get("bytes"),
        "seconds": saved.get("seconds"),
        "stall_seconds": saved.get("stallSeconds"),
        "held_out_loss": saved.get("heldOutLoss"),
        "best_step": saved.get("bestStep"),
        "best_held_out_loss": saved.get("bestHeldOutLoss"),
        "restored_epoch": saved.get("restoredEpoch"),
        "restored_step": saved.get("restoredStep"),
        "lost_steps": saved.get("lostSteps"),
    }


def saved_of(job: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the status tells of checkpoints.

    Raises:
        OperatorError: the job saves no checkpoints, or has saved none.
    """
    check_saves(job, body)
    found: Mapping[str, Any] = (body.get("status") or {}).get("checkpoint") or {}
    if "step" not in found:
        raise OperatorError(
            f"job {job} tells of no checkpoint yet; `heddle checkpoint now --job {job}` saves one",
            code="Missing",
        )
    return found


def check_saves(job: str, body: Mapping[str, Any]) -> None:
    """Refuse a job without checkpoints.

    Raises:
        OperatorError: it is one.
    """
    if not (body.get("spec") or {}).get("checkpoint"):
        raise OperatorError(
            f"job {job} saves no checkpoints; only a job with spec.checkpoint does",
            field="spec.checkpoint",
            code="Missing",
        )
