"""A folder of weights that a command writes: its precision, and its room on the disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click

from heddle.cli.options import Decorator
from planner.wording import reason_of
from worker.errors import InvalidWeights

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def dtype_option(otherwise: str) -> Decorator[Any]:
    """Give a command `dtype`; without the option the precision is `otherwise`."""
    return click.option(
        "--dtype",
        type=click.Choice(list(PRECISIONS)),
        help=f"Precision of the exported weights.  [default: {otherwise}]",
    )


overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace the weights that FOLDER holds."
)


def torch_dtype(name: str) -> Any:
    """The dtype of torch for a precision."""
    import torch

    return getattr(torch, PRECISIONS[name])


def check_room(folder: Path, needed_bytes: int) -> None:
    """Refuse what the disk cannot hold, before hours of writing.

    Raises:
        InvalidWeights: says how much there is.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if needed_bytes > free:
        raise InvalidWeights(
            f"the weights have {needed_bytes:,} bytes, {there} has room for {free:,}; name a "
            "folder on another disk",
            field="folder",
            code="Unwritable",
        )


def cannot_write(folder: Path, error: Exception) -> InvalidWeights:
    """The error for a folder that the system does not let be written."""
    return InvalidWeights(
        f"{folder} cannot be written: {reason_of(error).lower()}; name another folder, or make "
        "room",
        field="folder",
        code="Unwritable",
    )
