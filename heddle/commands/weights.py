"""`heddle weights`: export what a job left, or check a folder that a job is to start from.

Invariant: neither ever holds more than some rows of a model, and no file is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from heddle.cli.findings import print_findings
from heddle.cli.options import A_FILE, SHOWN, format_option
from heddle.cli.progress import progress_bar
from heddle.cli.written_folder import (
    cannot_write,
    check_room,
    dtype_option,
    overwrite_option,
    torch_dtype,
)
from planner.wording import counted
from worker.errors import InvalidWeights

if TYPE_CHECKING:
    from planner.model.shape import ModelShape
    from worker.weights.hugging_face.families import Family
    from worker.weights.hugging_face.reading import WeightsFolder
    from worker.weights.hugging_face.writing import Wanted
    from worker.weights.sources import Source


@click.group()
def weights() -> None:
    """Export a job's weights, or check those that a job is to start from."""


@weights.command(context_settings=SHOWN)
@click.argument("run", type=A_FILE)
@click.argument("folder", type=A_FILE)
@dtype_option("RUN's")
@click.option(
    "--max-shard-mb",
    type=click.IntRange(1),
    default=50_000,
    help="Largest file of weights, in 10^6 bytes.",
)
@overwrite_option
@format_option("table")
def export(
    run: Path, folder: Path, dtype: str | None, max_shard_mb: int, overwrite: bool, output: str
) -> None:
    """Write the weights of RUN as FOLDER, which `transformers` loads.

    RUN is the output folder of a job, the parts of its pods in one folder, or any folder of
    Hugging Face weights.
    """
    from worker.weights.hugging_face.writing import folder_files, numel_of, write_folder

    wanted, source, read, kind = _open_run(run)
    if dtype is not None:
        wanted = replace(wanted, dtype=torch_dtype(dtype))
    wanted = replace(wanted, max_shard_bytes=max_shard_mb * 10**6)
    _check_target(read, folder, overwrite)
    with progress_bar() as bar:
        task = bar.add_task("numbers", total=numel_of(wanted))
        files = folder_files(wanted, source, lambda count: bar.advance(task, count))
        check_room(folder, sum(file.size for file in files))
        try:
            write_folder(folder, files, set())
        except OSError as error:
            raise cannot_write(folder, error) from None
    about = {
        "folder": str(folder),
        "from": kind,
        "model": wanted.model.name,
        "parameters": numel_of(wanted),
        "dtype": str(wanted.dtype).removeprefix("torch."),
        "bytes": sum(file.size for file in files),
        "files": [file.name for file in files],
    }
    print_findings(about, output)


@weights.command(
    short_help="Check whether a job can start from these weights.", context_settings=SHOWN
)
@click.argument("folder", type=A_FILE)
@format_option("table")
def check(folder: Path, output: str) -> None:
    """Check whether a job can start from the weights in FOLDER.

    The model must be trainable, names, shapes and types must fit, and each number must be finite.
    All numbers are read.
    """
    from worker.trainable import why_untrainable
    from worker.weights.hugging_face.reading import WeightsFolder

    model, family = _model_of(folder)
    untrainable = why_untrainable(model, sequence_length=1)
    if untrainable is not None:
        raise InvalidWeights(f"{folder}: {untrainable}", field="folder", code="Unsupported")
    held = WeightsFolder(folder, model, family)
    missing, left_over, wrong = held.misfit
    fault = held.fault or held.not_finite()
    is_right = fault is None
    about = {
        "folder": str(folder),
        "tensors": len(held.stored),
        "parameters": sum(tensor.numel for tensor in held.stored),
        "dtype": ", ".join(_names(held.dtypes)) if is_right else None,
        "files": list(held.files),
        "missing": list(missing),
        "left_over": list(left_over),
        "left_out": list(held.left_out),
        "wrong": list(map(str, wrong)),
    }
    print_findings(about, output)
    if fault is not None:
        raise fault


class Run(NamedTuple):
    """Weights to export.

    Attributes:
        wanted: all of it, as it is.
        source: of the numbers.
        folder: that is read.
        kind: what it holds, in words.
    """

    wanted: Wanted
    source: Source
    folder: Path
    kind: str


def _open_run(run: Path) -> Run:
    from planner.model.config import CONFIG, read_config
    from worker.weights.hugging_face.writing import Wanted
    from worker.weights.merging import has_parts, parts_in, wanted_of

    if has_parts(run) or not (run / CONFIG).is_file():
        parts = parts_in(run)
        parts.verify()
        return Run(wanted_of(parts), parts, parts.folder, counted(len(parts.names), "part"))
    held = _open_folder(run)
    if held.fault is not None:
        raise held.fault
    wanted = Wanted(held.model, read_config(run), run)
    if len(held.dtypes) == 1:
        wanted = replace(wanted, dtype=held.dtypes[0])
    return Run(wanted, held, run, counted(len(held.files), "file"))


def _open_folder(folder: Path) -> WeightsFolder:
    from worker.weights.hugging_face.reading import WeightsFolder

    return WeightsFolder(folder, *_model_of(folder))


def _model_of(folder: Path) -> tuple[ModelShape, Family]:
    """Content of a folder's config.json."""
    from planner.model.config import CONFIG, model_from_config, read_config
    from worker.weights.hugging_face.tensors import family_of

    family = family_of(read_config(folder))
    return model_from_config(folder / CONFIG), family


def _check_target(read: Path, folder: Path, overwrite: bool) -> None:
    """Refuse to write over what is read, or unasked over what is there.

    Raises:
        InvalidWeights: see above.
    """
    from planner.model.config import CONFIG

    if folder.exists() and not folder.is_dir():
        raise InvalidWeights(f"{folder} is a file; name a folder", field="folder", code="Taken")
    if folder.exists() and folder.samefile(read):
        raise InvalidWeights(
            f"{folder} is the folder that is read; name another one", field="folder", code="Taken"
        )
    held = [CONFIG, *(path.name for path in folder.glob("model*.safetensors"))]
    if not overwrite and any((folder / name).exists() for name in held):
        raise InvalidWeights(
            f"{folder} holds a model already; name another folder or --overwrite",
            field="folder",
            code="Taken",
        )


def _names(dtypes: Iterable[Any]) -> list[str]:
    return [str(dtype).removeprefix("torch.") for dtype in dtypes]
