"""Keep a training on disk so that it can go on after a kill at any moment.

Invariant: the file is the last whole state or the one before, never a part of one.
"""

from __future__ import annotations

from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from planner.errors import FIELD, InvalidPolicy
from planner.policy.weights import write_atomically
from planner.training.checkpoint_file import CHECKPOINT, digest_of, read_checkpoint
from planner.training.settings import TrainingSettings


def keep_state(
    folder: Path, state: dict[str, Any], settings: TrainingSettings, questions: str
) -> None:
    """Write a state, tensors and plain data, of a training on questions of that digest."""
    buffer = BytesIO()
    torch.save({"settings": asdict(settings), "questions": questions, "state": state}, buffer)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / CHECKPOINT, digest_of(buffer.getvalue()) + buffer.getvalue())


def take_up(folder: Path, settings: TrainingSettings, questions: str) -> dict[str, Any]:
    """Read the state of the same training.

    Raises:
        InvalidPolicy: there is none, it is damaged, or it is of another training.
    """
    kept = torch.load(BytesIO(read_checkpoint(folder)), weights_only=True)
    asked = asdict(settings)
    odd = sorted(name for name in asked if kept["settings"].get(name) != asked[name])
    if odd:
        raise InvalidPolicy(
            f"the training in {folder} has {odd[0]} {kept['settings'].get(odd[0])}, asked was "
            f"{asked[odd[0]]}; resume it with the options it was begun with",
            field=odd[0],
            code="Mismatch",
        )
    if kept["questions"] != questions:
        raise InvalidPolicy(
            f"the training in {folder} is for another model, other types or another profile; "
            f"leave {FIELD} out, or name another folder",
            field="resume",
            code="Mismatch",
        )
    state: dict[str, Any] = kept["state"]
    return state
