"""Advice while the disk refuses the final weights, and their place after a run.

Invariant: reads the disk, writes nothing; weights are called saved only where a model can be made
of what the disk holds.
"""

from __future__ import annotations

import math
import shlex
import shutil
from pathlib import Path

from heddle.train.preconditions.refusals import COPIES, weights_bytes
from planner.model.shape import ModelShape

BESIDES_BYTES = 1_000_000  # indices, config.json, tokenizer files and the disk's own blocks
WEIGHTS = ("parts/*", "model*.safetensors*")  # as a run writes them into its output folder


def remedy(folder: Path, model: ModelShape) -> str:
    """Remedy that lets the final weights be written, as a clause."""
    try:
        written = sum(path.stat().st_size for name in WEIGHTS for path in folder.glob(name))
        free = shutil.disk_usage(folder).free
    except OSError:  # a file took its name meanwhile, or the disk does not answer
        return f"make {folder} writable, with room for the weights"
    lacking = COPIES * weights_bytes(model) + BESIDES_BYTES - written - free
    if lacking > 0:
        return f"free {math.ceil(lacking / 1e6):,} MB on the disk of {folder}"
    return f"make {folder} writable"


def without_waiting(folder: Path) -> str:
    """The rest of the final weights if the run ends now, as a clause."""
    return as_parts(folder) if whole_parts(folder) else "no weights are saved"


def as_parts(folder: Path) -> str:
    """Where whole parts are, and the command that makes a model of them."""
    return (
        "the weights are saved in parts: `heddle weights export "
        f"{shlex.quote(str(folder))} FOLDER` writes them as a model to another disk"
    )


def whole_parts(folder: Path) -> Path | None:
    """The folder of the parts that ranks left in an output folder; None unless all are whole."""
    if not any(folder.glob("parts/*.whole")):
        return None
    from worker.errors import InvalidWeights
    from worker.weights.merging import PARTS, are_whole
    from worker.weights.parts import WeightParts

    try:
        return folder / PARTS if are_whole(WeightParts(folder / PARTS)) else None
    except InvalidWeights:
        return None
