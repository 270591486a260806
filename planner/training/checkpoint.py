"""Keep a training on disk so that it can go on after a kill at any moment.

One file holds everything: the arrays, and all else as JSON in the file's header.
Invariant: the file is the last whole state or the one before, never a part of one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from planner.errors import InvalidPolicy
from planner.policy.schema import Array
from planner.policy.weights import write_atomically
from planner.training.settings import TrainingSettings

CHECKPOINT = "checkpoint.safetensors"
State = tuple[dict[str, Array], dict[str, Any]]


def keep_state(folder: Path, state: State, settings: TrainingSettings, questions: str) -> None:
    """Write a state.

    Args:
        folder: of the policy.
        state: arrays and plain data.
        settings: of the training.
        questions: digest of what it trains on.
    """
    arrays, data = state
    header = {"settings": asdict(settings), "questions": questions, "data": data}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(header)
    metadata = {"training": text, "digest": _digest(arrays, text)}
    content = save(arrays, metadata=metadata)
    write_atomically(folder / CHECKPOINT, content)


def take_up(folder: Path, settings: TrainingSettings, questions: str) -> State:
    """Read the state of the same training.

    Raises:
        InvalidPolicy: there is none, it is damaged, or it is of another training.
    """
    path = folder / CHECKPOINT
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            names = file.keys()
            arrays = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise InvalidPolicy(
            f"there is no training to resume in {folder}: {error}; leave --resume out"
        ) from None
    text = metadata.get("training", "")
    if metadata.get("digest") != _digest(arrays, text):
        raise InvalidPolicy(
            f"the training in {folder} is damaged: {CHECKPOINT} is not what was written; leave "
            f"--resume out"
        )
    header = json.loads(text)
    asked = json.loads(json.dumps(asdict(settings)))
    odd = sorted(name for name in asked if header["settings"].get(name) != asked[name])
    if odd:
        raise InvalidPolicy(
            f"the training in {folder} has {odd[0]} {header['settings'].get(odd[0])}, asked was "
            f"{asked[odd[0]]}; resume it with the options it was begun with"
        )
    if header["questions"] != questions:
        raise InvalidPolicy(
            f"the training in {folder} is for another model, other types or another profile; "
            f"leave --resume out, or name another --out"
        )
    return arrays, header["data"]


def _digest(arrays: Mapping[str, Array], text: str) -> str:
    """Of all that a state says."""
    found = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(arrays):
        found.update(name.encode())
        found.update(np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()
