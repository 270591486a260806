"""The folder that an export of a checkpoint writes, for `transformers` or for torch.

Invariant: nothing of somebody else is replaced unasked, and no checkpoint is ever written into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.cli.progress import bytes_bar
from heddle.cli.written_folder import PRECISIONS, cannot_write, check_room, torch_dtype
from worker.errors import InvalidWeights

if TYPE_CHECKING:
    from worker.checkpoint.manifest import Manifest
    from worker.checkpoint.verify import Contents
    from worker.weights.files import File


def export_to(
    folder: Path, path: str, step: int | None, form: str, dtype: str, *, overwrite: bool
) -> dict[str, Any]:
    """Write a checkpoint as a folder; what was written.

    Args:
        folder: that is written.
        path: of the checkpoints.
        step: of the one that is exported; None: the newest whole one.
        form: `hugging-face` or `dcp`.
        dtype: of weights of the form `hugging-face`, one of PRECISIONS.
        overwrite: a model that the folder holds may be replaced.

    Raises:
        InvalidWeights: the folder is somebody else's, or cannot be written.
    """
    from worker.checkpoint.listing import chosen, open_saved
    from worker.checkpoint.verify import Contents

    vault, found = open_saved(path)
    saved = chosen(found, step)
    manifest = saved.read_manifest()
    contents = Contents(vault, saved.attempt, manifest)
    try:
        _check_target(folder, path, form, overwrite)
    except (OSError, RuntimeError) as error:  # too long a name, or a loop of links
        raise cannot_write(folder, error) from None
    with bytes_bar() as bar:
        task = bar.add_task(str(saved.attempt))

        def wrote(num_bytes: int) -> None:
            bar.advance(task, num_bytes)

        files = _files_of(form, manifest, contents, dtype, wrote)
        size = sum(file.size for file in files)
        bar.update(task, total=size)
        check_room(folder, size)
        try:
            _write_files(folder, files, form)
        except OSError as error:
            raise cannot_write(folder, error) from None
    return {
        "folder": str(folder),
        "format": form,
        "step": saved.attempt.step,
        "model": contents.model.name,
        "dtype": PRECISIONS[dtype],
        "bytes": size,
        "files": [file.name for file in files],
    }


def _files_of(
    form: str, manifest: Manifest, contents: Contents, dtype: str, wrote: Callable[[int], None]
) -> tuple[File, ...]:
    """The files of the folder; `wrote` counts their bytes."""
    if form == "dcp":
        from worker.checkpoint.exporting import dcp_files

        return dcp_files(contents, manifest, wrote)
    return _hugging_face_files(manifest, contents, dtype, wrote)


def _hugging_face_files(
    manifest: Manifest, contents: Contents, dtype: str, wrote: Callable[[int], None]
) -> tuple[File, ...]:
    """The files of a folder that `transformers` loads; `wrote` counts their bytes."""
    from worker.checkpoint.exporting import SavedWeights, hugging_face
    from worker.weights.hugging_face.writing import folder_files

    wanted = replace(hugging_face(manifest, contents), dtype=torch_dtype(dtype))
    size = wanted.dtype.itemsize
    return folder_files(wanted, SavedWeights(contents), lambda count: wrote(count * size))


def _check_target(folder: Path, path: str, form: str, overwrite: bool) -> None:
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


def _write_files(folder: Path, files: Sequence[File], form: str) -> None:
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
