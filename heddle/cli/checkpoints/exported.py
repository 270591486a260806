"""The folder that an export of a checkpoint writes, for `transformers` or for torch.

Invariant: nothing of somebody else is replaced unasked, and no checkpoint is ever written into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.cli.written_folder import torch_dtype
from worker.errors import InvalidWeights

if TYPE_CHECKING:
    from worker.checkpoint.manifest import Manifest
    from worker.checkpoint.verify import Contents
    from worker.weights.files import File


def hugging_face_files(
    manifest: Manifest, contents: Contents, dtype: str, wrote: Callable[[int], None]
) -> tuple[File, ...]:
    """The files of a folder that `transformers` loads; `wrote` counts their bytes."""
    from worker.checkpoint.exporting import SavedWeights, hugging_face
    from worker.weights.hugging_face.writing import folder_files

    wanted = replace(hugging_face(manifest, contents), dtype=torch_dtype(dtype))
    size = wanted.dtype.itemsize
    return folder_files(wanted, SavedWeights(contents), lambda count: wrote(count * size))


def check_target(folder: Path, path: str, form: str, overwrite: bool) -> None:
    """Refuse to write among checkpoints, or unasked over what is there.

    Raises:
        InvalidWeights: see above.
    """
    from planner.model.config import CONFIG
    from worker.checkpoint.exporting import DCP_FILES
    from worker.checkpoint.vaults.open_vault import folder_of

    if folder.exists() and not folder.is_dir():
        raise InvalidWeights(f"{folder} is a file; name a folder", field="folder", code="Taken")
    of_vault = folder_of(path)
    if of_vault is not None and folder.resolve().is_relative_to(of_vault.resolve()):
        raise InvalidWeights(
            f"{folder} is among the checkpoints in {path}; name another folder",
            field="folder",
            code="Taken",
        )
    held = {file.name for file in folder.glob("*.safetensors")}
    if not overwrite and (held or (folder / CONFIG).exists()):
        raise InvalidWeights(
            f"{folder} holds a model already; name another folder or --overwrite",
            field="folder",
            code="Taken",
        )
    others = held - {file.name for file in folder.glob(DCP_FILES)}
    if form == "dcp" and others:
        raise InvalidWeights(
            f"{folder} holds {min(others)}, which torch would read too; name another folder",
            field="folder",
            code="Taken",
        )


def write_files(folder: Path, files: Sequence[File], form: str) -> None:
    """Write the files; what is left of an older export is never taken for one of this."""
    from planner.model.config import CONFIG
    from worker.checkpoint.exporting import DCP_FILES
    from worker.weights.hugging_face.writing import write_folder

    if form == "hugging-face":
        (folder / CONFIG).unlink(missing_ok=True)
        write_folder(folder, files, set())
        return
    for older in folder.glob(DCP_FILES):
        older.unlink()
    for file in files:
        file.write(folder)
