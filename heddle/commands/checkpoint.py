"""`heddle checkpoint`: list, show, verify, export and remove the checkpoints of a folder.

Invariants: no file is ever unpickled; nothing but `rm` changes a checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.checkpoint_rows import checkpoint_table, content_of, rows_of
from heddle.cli.findings import print_findings
from heddle.cli.options import A_FILE, AT_LEAST_1, SHOWN, namespace_option, output_option
from heddle.cli.progress import bytes_bar
from heddle.cli.tables import FEW
from heddle.cli.written_folder import (
    PRECISIONS,
    cannot_write,
    check_room,
    dtype_option,
    overwrite_option,
    torch_dtype,
)
from planner.errors import InvalidRequest
from worker.errors import InvalidWeights

if TYPE_CHECKING:
    from worker.checkpoint.listing import Saved
    from worker.checkpoint.manifest import Manifest
    from worker.checkpoint.verify import Contents
    from worker.weights.files import File

step_option = click.option(
    "--step", type=click.IntRange(0), help="Step of the checkpoint.  [default: the newest whole]"
)


@click.group()
def checkpoint() -> None:
    """List, show, verify, export and remove checkpoints.

    PATH is the folder in which a job saves its checkpoints.
    """


@checkpoint.command(name="ls", context_settings=SHOWN)
@click.argument("path")
@output_option
def list_(path: str, output: str) -> None:
    """List the checkpoints in PATH, the newest first."""
    from worker.checkpoint.listing import open_saved

    _, found = open_saved(path)
    rows = rows_of(found)
    click.echo(json.dumps(rows) if output == "json" else checkpoint_table(rows))


@checkpoint.command(context_settings=SHOWN)
@click.argument("path")
@step_option
@output_option
def show(path: str, step: int | None, output: str) -> None:
    """Show a checkpoint in PATH, and the settings of its job."""
    from worker.checkpoint.listing import chosen, open_saved

    _, found = open_saved(path)
    print_findings({"path": path, **content_of(chosen(found, step), found)}, output)


@checkpoint.command(context_settings=SHOWN)
@click.argument("path")
@click.option(
    "--step",
    type=click.IntRange(0),
    help="Step of the checkpoint.  [default: the newest with a manifest]",
)
@output_option
def verify(path: str, step: int | None, output: str) -> None:
    """Read a checkpoint in PATH, and check every byte of it.

    The command ends with 0 if the checkpoint is whole. Otherwise it names the first damaged object.
    """
    from worker.checkpoint.listing import chosen, open_saved
    from worker.checkpoint.manifest import Damaged
    from worker.checkpoint.verify import verify as read_all

    vault, found = open_saved(path)
    saved = chosen(found, step, among=("whole", "damaged", "newer"))
    about: dict[str, Any] = {
        "path": path,
        "step": saved.attempt.step,
        "epoch": saved.attempt.epoch,
        "is_whole": False,
    }
    fault: Exception | None = None
    checked_bytes = 0
    with bytes_bar() as bar:
        boxes = saved.manifest.boxes if saved.manifest else ()
        task = bar.add_task(str(saved.attempt), total=sum(one.num_bytes for one in boxes))

        def checked(num_bytes: int) -> None:
            nonlocal checked_bytes
            checked_bytes += num_bytes
            bar.advance(task, num_bytes)

        try:
            whole = read_all(vault, saved.attempt, saved.read_manifest(), checked)
            about |= {"is_whole": True, "files": whole.files, "boxes": whole.blocks}
        except Damaged as error:
            fault = error
            about |= {"damaged": error.name}
    about["bytes"] = checked_bytes
    print_findings(about, output)
    if fault is not None:
        raise fault


@checkpoint.command(context_settings=SHOWN)
@click.argument("path")
@click.argument("folder", type=A_FILE)
@step_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["hugging-face", "dcp"]),
    default="hugging-face",
    help="Kind of the folder: weights for `transformers`, or the whole state for torch.",
)
@dtype_option("fp32")
@overwrite_option
@output_option
def export(
    path: str,
    folder: Path,
    step: int | None,
    form: str,
    dtype: str | None,
    overwrite: bool,
    output: str,
) -> None:
    """Write a checkpoint in PATH as FOLDER, for other programs.

    `transformers` loads a folder of the format hugging-face. torch.distributed.checkpoint loads one
    of the format dcp, with moments, by its HuggingFaceStorageReader.
    """
    from worker.checkpoint.listing import chosen, open_saved
    from worker.checkpoint.verify import Contents

    if form == "dcp" and dtype is not None:
        raise click.UsageError("give --dtype with --format hugging-face, as dcp copies the state")
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

        if form == "dcp":
            from worker.checkpoint.exporting import dcp_files

            files = dcp_files(contents, manifest, wrote)
        else:
            files = _hugging_face(manifest, contents, dtype or "fp32", wrote)
        size = sum(file.size for file in files)
        bar.update(task, total=size)
        check_room(folder, size)
        try:
            _write(folder, files, form)
        except OSError as error:
            raise cannot_write(folder, error) from None
    names = [file.name for file in files]
    about = {
        "folder": str(folder),
        "format": form,
        "step": saved.attempt.step,
        "model": contents.model.name,
        "dtype": PRECISIONS[dtype or "fp32"],
        "bytes": size,
        "files": names if output == "json" or len(names) <= FEW else len(names),
    }
    print_findings(about, output)


@checkpoint.command(context_settings=SHOWN)
@click.argument("path")
@click.option("--step", type=click.IntRange(0), help="Step whose checkpoints are removed.")
@click.option(
    "--all-but", type=AT_LEAST_1, help="Number of whole checkpoints that stay, the newest ones."
)
@click.option("--yes", is_flag=True, help="Remove without a question, also the newest whole one.")
@output_option
def rm(path: str, step: int | None, all_but: int | None, yes: bool, output: str) -> None:
    """Remove checkpoints from PATH.

    The manifest of each goes before its files. A person at a terminal is asked first.
    """
    from worker.checkpoint.attempts import to_remove
    from worker.checkpoint.listing import CONDITIONS, chosen, is_needed, kept, open_saved

    if (step is None) == (all_but is None):
        raise click.UsageError("give exactly one of --step and --all-but")
    vault, found = open_saved(path)
    if all_but is not None:
        stays = kept(found, all_but)
        gone = [saved for saved in found if saved not in stays]
    else:
        chosen(found, step, among=CONDITIONS)  # or it names the nearest
        gone = [saved for saved in found if saved.attempt.step == step]
    if not yes:
        needed = [str(saved.attempt) for saved in gone if is_needed(found, saved)]
        if needed:
            raise InvalidRequest(
                f"{needed[0]} is the newest whole checkpoint, or a save under way; give --yes to "
                "remove it",
                field="yes",
                code="Refused",
            )
        if gone and not _agrees(gone):
            gone = []
    for saved in reversed(gone):  # the newest lasts longest
        for name in to_remove(saved.attempt, saved.objects):
            vault.remove(name)
    about = {
        "path": path,
        "removed": [str(saved.attempt) for saved in gone],
        "bytes": sum(saved.num_bytes or 0 for saved in gone),
        "kept": [str(saved.attempt) for saved in found if saved not in gone],
    }
    print_findings(about, output)


@checkpoint.command(context_settings=SHOWN)
@click.argument("job")
@namespace_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=1.0),
    default=600.0,
    show_default=True,
    help="Seconds to wait until the checkpoint is whole.",
)
@output_option
def now(job: str, namespace: str | None, timeout: float, output: str) -> None:
    """Save a checkpoint of a job of the cluster, and wait for it."""
    import asyncio

    from heddle.cli.checkpoint_now import save_now

    def say(line: str) -> None:
        click.echo(line, err=True)

    print_findings(asyncio.run(save_now(job, namespace, timeout, say)), output)


def _agrees(gone: Sequence[Saved]) -> bool:
    """Answer of a person at a terminal; without one nobody is asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    names = ", ".join(str(saved.attempt) for saved in gone)
    return click.confirm(f"Remove {names}?", err=True)


def _hugging_face(
    manifest: Manifest, contents: Contents, dtype: str, wrote: Callable[[int], None]
) -> tuple[File, ...]:
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
    from worker.checkpoint.open_vault import folder_of

    if folder.exists() and not folder.is_dir():
        raise InvalidWeights(f"{folder} is a file; name a folder", code="Taken")
    of_vault = folder_of(path)
    if of_vault is not None and folder.resolve().is_relative_to(of_vault.resolve()):
        raise InvalidWeights(
            f"{folder} is among the checkpoints in {path}; name another folder", code="Taken"
        )
    held = {file.name for file in folder.glob("*.safetensors")}
    if not overwrite and (held or (folder / CONFIG).exists()):
        raise InvalidWeights(
            f"{folder} holds a model already; name another folder or --overwrite", code="Taken"
        )
    others = held - {file.name for file in folder.glob(DCP_FILES)}
    if form == "dcp" and others:
        raise InvalidWeights(
            f"{folder} holds {min(others)}, which torch would read too; name another folder",
            code="Taken",
        )


def _write(folder: Path, files: Sequence[File], form: str) -> None:
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
