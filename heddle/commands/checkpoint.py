"""`heddle checkpoint`: list, show, verify, export and remove checkpoints of a folder or of a job.

Of a job of the cluster, `ls` and `show` read the status; the others run where its pods would.
Invariants: no file is ever unpickled; nothing but `rm` changes a checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import wraps
from pathlib import Path
from typing import Any, cast

import click

from heddle.cli.checkpoints.rows import checkpoint_table, content_of, rows_of
from heddle.cli.findings import print_findings
from heddle.cli.options import (
    A_FILE,
    AT_LEAST_1,
    SHOWN,
    Command,
    Finite,
    format_option,
    job_named,
    namespace_option,
)
from heddle.cli.progress import bytes_bar
from heddle.cli.tables import FEW
from heddle.cli.written_folder import (
    dtype_option,
    overwrite_option,
)

step_option = click.option(
    "--step", type=click.IntRange(0), help="Step of the checkpoint.  [default: the newest whole]"
)
path_argument = click.argument("path", required=False)


def job_option(command: Command) -> Command:
    """`--job` with `--namespace`; the command gets both as one `job`, NS/NAME or NAME."""

    @wraps(command)
    def joined(job: str | None, namespace: str | None, **others: Any) -> Any:
        if namespace is not None:
            if job is None:
                raise click.UsageError("give --namespace with --job")
            name, namespace = job_named(job, namespace)
            job = f"{namespace}/{name}"
        return command(job=job, **others)

    option = click.option(
        "--job",
        metavar="[NS/]NAME",
        help="Use the checkpoints of this job of the cluster, in place of PATH.",
    )
    return cast("Command", option(namespace_option(joined)))


@click.group()
def checkpoint() -> None:
    """List, show, verify, export and remove checkpoints.

    PATH is the folder in which a job saves its checkpoints. With --job, the answer is that of a
    job of the cluster. Verbs that read files run as a Kubernetes Job with the job's volumes.
    """


@checkpoint.command(name="ls", context_settings=SHOWN)
@path_argument
@job_option
@format_option("table")
def list_(path: str | None, job: str | None, output: str) -> None:
    """List the checkpoints in PATH, the newest first."""
    if (path := _path(path, job)) is None:
        from heddle.cli.checkpoints.of_job import job_rows, job_table

        rows = job_rows(str(job), _job_body(str(job)))
        click.echo(json.dumps(rows) if output == "json" else job_table(rows))
        return
    from worker.checkpoint.listing import open_saved

    _, found = open_saved(path)
    rows = rows_of(found)
    click.echo(json.dumps(rows) if output == "json" else checkpoint_table(rows))


@checkpoint.command(context_settings=SHOWN)
@path_argument
@job_option
@step_option
@format_option("table")
def show(path: str | None, job: str | None, step: int | None, output: str) -> None:
    """Show a checkpoint in PATH, and the settings of its job."""
    if (path := _path(path, job)) is None:
        from heddle.cli.checkpoints.of_job import job_content

        if step is not None:
            raise click.UsageError("give --step with PATH; of a job the newest checkpoint is shown")
        print_findings(job_content(str(job), _job_body(str(job))), output)
        return
    from worker.checkpoint.listing import chosen, open_saved

    _, found = open_saved(path)
    print_findings({"path": path, **content_of(chosen(found, step), found)}, output)


@checkpoint.command(context_settings=SHOWN)
@path_argument
@job_option
@click.option(
    "--step",
    type=click.IntRange(0),
    help="Step of the checkpoint.  [default: the newest with a manifest]",
)
@format_option("table")
def verify(path: str | None, job: str | None, step: int | None, output: str) -> int:
    """Read a checkpoint in PATH, and check every byte of it.

    The command ends with 0 if the checkpoint is whole. Otherwise it names the first damaged object.
    """
    if (path := _path(path, job)) is None:
        return _in_cluster(str(job), "verify", (*_given("--step", step), "--output", output))
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
    return 0


@checkpoint.command(context_settings=SHOWN)
@path_argument
@click.argument("folder", metavar="FOLDER", required=False, type=A_FILE)
@job_option
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
@format_option("table")
def export(
    path: str | None,
    folder: Path | None,
    job: str | None,
    step: int | None,
    form: str,
    dtype: str | None,
    overwrite: bool,
    output: str,
) -> int:
    """Write a checkpoint in PATH as FOLDER, for other programs.

    `transformers` loads a folder of the format hugging-face. torch.distributed.checkpoint loads one
    of the format dcp, with moments, by its HuggingFaceStorageReader. With --job, FOLDER is on a
    volume of the job's pods.
    """
    if form == "dcp" and dtype is not None:
        raise click.UsageError("give --dtype with --format hugging-face, as dcp copies the state")
    if job is not None and folder is None and path is not None:
        folder, path = Path(path), None
    if folder is None:
        raise click.UsageError("Missing argument 'FOLDER'.")
    if (path := _path(path, job)) is None:
        options = (
            *(*_given("--step", step), "--format", form, *_given("--dtype", dtype)),
            *(*(("--overwrite",) if overwrite else ()), "--output", output),
        )
        return _in_cluster(str(job), "export", (str(folder), *options), str(folder))
    from heddle.cli.checkpoints.exported import export_to

    about = export_to(folder, path, step, form, dtype or "fp32", overwrite=overwrite)
    if output != "json" and len(about["files"]) > FEW:
        about["files"] = len(about["files"])
    print_findings(about, output)
    return 0


@checkpoint.command(context_settings=SHOWN)
@path_argument
@job_option
@click.option("--step", type=click.IntRange(0), help="Step whose checkpoints are removed.")
@click.option(
    "--all-but", type=AT_LEAST_1, help="Number of whole checkpoints that stay, the newest ones."
)
@click.option("--yes", is_flag=True, help="Remove without a question, also the newest whole one.")
@format_option("table")
def rm(
    path: str | None,
    job: str | None,
    step: int | None,
    all_but: int | None,
    yes: bool,
    output: str,
) -> int:
    """Remove checkpoints from PATH.

    The manifest of each goes before its files. A person at a terminal is asked first. Hidden files
    that dead writers left go too.
    """
    if (step is None) == (all_but is None):
        raise click.UsageError("give exactly one of --step and --all-but")
    if (path := _path(path, job)) is None:
        which = f"all but {all_but}" if step is None else f"those of step {step}"
        if not yes and not _agrees(f"checkpoints of job {job}, {which}"):
            return 0
        options = (*_given("--step", step), *_given("--all-but", all_but))
        yes_too = ("--yes",) if yes else ()
        return _in_cluster(str(job), "rm", (*options, *yes_too, "--output", output))
    from heddle.cli.checkpoints.removed import remove_from

    print_findings(remove_from(path, step, all_but, None if yes else _agrees), output)
    return 0


@checkpoint.command(context_settings=SHOWN)
@click.argument("name", metavar="[JOB]", required=False)
@click.option("--job", metavar="[NS/]NAME", help="Job of the cluster to save, in place of JOB.")
@namespace_option
@click.option(
    "--timeout",
    type=Finite(1),
    default=600.0,
    show_default=True,
    help="Seconds to wait until the checkpoint is whole.",
)
@format_option("table")
def now(
    name: str | None, job: str | None, namespace: str | None, timeout: float, output: str
) -> None:
    """Save a checkpoint of a job of the cluster, and wait for it."""
    from heddle.cli.checkpoints.now import save_now

    if (name is None) == (job is None):
        raise click.UsageError("give exactly one of JOB and --job")
    name, namespace = job_named(name or str(job), namespace)
    print_findings(asyncio.run(save_now(name, namespace, timeout, _say)), output)


def _path(path: str | None, job: str | None) -> str | None:
    """The path of the checkpoints; None: those of a job are meant."""
    if (path is None) == (job is None):
        raise click.UsageError("give exactly one of PATH and --job")
    return path


def _job_body(job: str) -> dict[str, Any]:
    from heddle.cli.jobs import read_job

    return asyncio.run(read_job(*job_named(job, None)))


def _in_cluster(job: str, verb: str, arguments: tuple[str, ...], folder: str = "") -> int:
    """Let a Kubernetes Job do a verb; its exit code."""
    from heddle.cli.checkpoints.cluster_job import Verb, run_verb

    name, namespace = job_named(job, None)

    def tell(piece: bytes) -> None:
        click.echo(piece, nl=False)

    return asyncio.run(run_verb(name, namespace, Verb(verb, arguments, folder), tell, _say))


def _given(option: str, value: object) -> tuple[str, ...]:
    """An option for a command line, if it is given."""
    return () if value is None else (option, str(value))


def _say(line: str) -> None:
    click.echo(line, err=True)


def _agrees(names: str) -> bool:
    """Answer of a person at a terminal; without one nobody is asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    return click.confirm(f"Remove {names}?", err=True)
