"""`heddle train JOB.yaml`: a HeddleJob on this machine, without a Kubernetes.

The first line is printed before anything heavy is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from heddle.cli.live import fits_live, live_options, require_keys
from heddle.cli.options import A_FILE, ZERO_STAGE, require_one_reader

if TYPE_CHECKING:
    from heddle.train.choices import Choices
    from heddle.train.machine import Machine
    from heddle.train.run import RunOptions
    from planner.model.workload import Zero

BY_SIGNAL = 128  # a shell adds the number of the signal that ended a program
MOST_RANKS = 32  # `heddle.train.script.MOST_GPUS`, which must not be imported here


@click.command()
@click.argument("job", type=A_FILE)
@click.option(
    "--check",
    is_flag=True,
    help="Report the mistakes in the job, those in its form first, and run nothing.",
)
@click.option(
    "--ranks",
    type=click.IntRange(1, MOST_RANKS),
    help="Processes that train, each on one core.  [default: one for each core, at most 16]",
)
@click.option(
    "--nodes",
    type=A_FILE,
    help=(
        "YAML file: a list of nodes with name, type, gpus. Type cpu is this machine's "
        "processor. Ranks of any other type are emulated: they wait until their "
        "modelled time has passed."
    ),
)
@click.option(
    "--script",
    type=A_FILE,
    help="YAML file: a list of events with at_step and one of join, drain, kill.",
)
@click.option(
    "--plan",
    type=A_FILE,
    help=(
        "JSON file from `heddle plan --output json`; the job trains with this plan, "
        "in mode Manual.  [default: the planner chooses]"
    ),
)
@click.option(
    "--zero",
    type=ZERO_STAGE,
    help="ZeRO stage, as in `heddle plan`.  [default: spec.planner.zero]",
)
@live_options()
@click.option(
    "--output-path",
    type=A_FILE,
    help="Folder for weights and measurements.  [default: spec.output.path, else NAME-output]",
)
@click.option(
    "--fresh",
    is_flag=True,
    help=(
        "Begin anew: remove the job's checkpoints. Of an earlier run, remove measurements, logs "
        "and weights from the output folder, and no other file."
    ),
)
@click.option(
    "--device",
    type=click.Choice(("cpu", "cuda")),
    help="Device of the ranks.  [default: spec.worker.device, where Auto is cpu here]",
)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    help=(
        "Format of the ranks' logs in the output folder.  [default: the job's logFormat, else text]"
    ),
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=1,
    show_default=True,
    help="Seed of the search for plans; the job holds the seed of the training.",
)
def train(
    job: Path,
    check: bool,
    ranks: int | None,
    nodes: Path | None,
    script: Path | None,
    plan: Path | None,
    zero: Zero | None,
    interactive: bool,
    headless: bool,
    output: str,
    output_path: Path | None,
    fresh: bool,
    device: Literal["cpu", "cuda"] | None,
    log_format: Literal["text", "json"] | None,
    seed: int,
) -> None:
    """Train a HeddleJob on this machine.

    JOB is a YAML file, as for `kubectl apply`, or `-` for standard input. The ranks are processes
    of this machine. Its processor is measured at the first use with a model. Exit status: 0 all
    steps are trained, 1 the job failed, 2 the input is wrong or a disk is full. Ctrl-C ends it with
    130, SIGTERM with 143. It is 141 if the reader of its output went away.
    """
    require_keys(interactive)
    require_one_reader({"JOB": job, "--nodes": nodes, "--script": script, "--plan": plan})
    from heddle.train.choices import TrainOptions, choose
    from heddle.train.machine import this_machine
    from heddle.train.preconditions.refusals import refusals
    from heddle_operator.apis.errors import InvalidJob

    machine = this_machine()
    options = TrainOptions(
        ranks=ranks,
        nodes=nodes,
        script=script,
        output=output_path,
        device=device,
        log_format=log_format,
        plan=plan,
        zero=zero,
    )
    try:
        choices = choose(job, options, machine)
        wrong = refusals(choices, is_fresh=fresh, reads_weights=check)
        if wrong:
            raise InvalidJob.of(wrong)
    except InvalidJob as error:
        if not (check and output == "json"):
            raise
        mistakes = [dataclasses.asdict(mistake) for mistake in error.mistakes]
        click.echo(json.dumps({"mistakes": mistakes, "notes": []}))
        sys.exit(2)
    if check:
        _say_checked(job, choices, fresh, output)
        return
    click.echo(
        f"heddle train {job}: Ctrl-C saves a checkpoint and ends it; the same command goes on.",
        err=output == "json",
    )
    for note in choices.notes:
        click.echo(f"note: {note}", err=output == "json")
    is_live = not (headless or output == "json") and fits_live()
    with _locked(choices, fresh, output) as run:
        status = _train(run, machine, seed, output, is_live=is_live, interactive=interactive)
    sys.exit(status)


@contextlib.contextmanager
def _locked(choices: Choices, fresh: bool, output: str) -> Iterator[Choices]:
    """The run, with its own id, its output folder and the folder of its checkpoints."""
    import secrets

    from heddle.train.checkpoints import has_checkpoint, path_of, remove_checkpoints
    from heddle.train.preconditions.beginning import beginning
    from heddle.train.preconditions.checkpoint_folder import CheckpointFolder
    from heddle.train.preconditions.output_folder import OutputFolder
    from worker.weights.run_record import RunRecord

    assert choices.job.spec.output is not None
    folder, name, run = Path(choices.job.spec.output.path), choices.job.name, secrets.token_hex(8)
    record = RunRecord(run=run, job=name, host=os.uname().nodename, pid=os.getpid())
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(CheckpointFolder(path_of(choices.job), record)))
        saved = choices.job.name if has_checkpoint(choices.job) else ""
        output_folder = OutputFolder(folder, record, fresh, saved)
        held = stack.enter_context(contextlib.closing(output_folder))
        if held.note:
            click.echo(f"note: {held.note}", err=output == "json")
        if fresh:
            remove_checkpoints(choices.job)
        begins = beginning(choices.job, is_fresh=fresh)
        if begins.note:
            click.echo(f"note: {begins.note}", err=output == "json")
        yield choices.of_run(held.run, begins.step)


def _say_checked(job: Path, choices: Choices, fresh: bool, output: str) -> None:
    from heddle.train.preconditions.beginning import beginning
    from planner.wording import counted

    begins = beginning(choices.job, is_fresh=fresh)
    notes = [*choices.notes, *([begins.note] if begins.note else [])]
    if output == "json":
        found = {"begun_from_step": begins.step, "steps_left": begins.steps_left}
        click.echo(json.dumps({"mistakes": [], "notes": notes, **found}))
        return
    for note in notes:
        click.echo(f"note: {note}")
    where = "emulated nodes" if choices.emulates else choices.nodes.nodes[0].gpu_type
    click.echo(
        f"{job}: nothing is wrong; it would train {counted(begins.steps_left, 'step')} with "
        f"{counted(choices.nodes.gpus, 'rank')} on {where}"
    )


def _train(
    choices: Choices, machine: Machine, seed: int, output: str, *, is_live: bool, interactive: bool
) -> int:
    """Measure if need be, run, say what came out; the exit status."""
    import asyncio

    from heddle.local.run_folder import run_folder
    from heddle.train.local_job import LocalJob, run_options
    from heddle.train.screen.show import show
    from heddle.train.script import check_nodes
    from heddle_operator.apis.errors import ProcessFailed

    is_quiet = output == "json"
    with run_folder("heddle-train-") as folder:
        profiles = None
        if choices.is_measured:
            profiles = _measured(choices, machine, folder, is_live, output)
        options: RunOptions = run_options(choices, profiles, seed, has_keys=interactive)
        check_nodes(choices.nodes, choices.script, options.profile)

        begun: list[LocalJob] = []

        def start(say: Callable[[str], None]) -> LocalJob:
            begun.append(LocalJob(options, folder, say))
            return begun[0]

        try:
            run = asyncio.run(
                show(start, is_live=is_live, interactive=interactive, is_quiet=is_quiet)
            )
        except ProcessFailed as error:
            if is_quiet:  # a program reads how far the job came, and why it failed
                failure = {"message": str(error), "code": error.code or "Failed"}
                click.echo(json.dumps({**begun[0].result(), "error": failure}))
            click.echo(f"Error: {error}", err=True)
            return 1
        _finish(run.result(), output)
    return exit_status(run.recorder.phase, run.ended_by)


def exit_status(phase: str, ended_by: int | None) -> int:
    """The exit status of a run that did not fail: 0 where all steps are trained.

    Args:
        phase: of the job at the end.
        ended_by: number of the signal that asked for the end; None: nobody asked.
    """
    return 0 if phase == "Complete" or ended_by is None else BY_SIGNAL + ended_by


def _measured(choices: Choices, machine: Machine, folder: Path, is_live: bool, output: str) -> Path:
    """The profile of this machine for this run."""
    import asyncio
    import os

    from heddle.train.measured import copy_for, measured_folder
    from heddle.train.screen.measuring import measuring_progress
    from heddle.train.screen.output import Output

    out = Output(output == "json")

    def say(line: str) -> None:
        out.write(f"{line}\n")

    workload = choices.job.workload
    title = f"measuring {machine.gpu_type}, once for this model"
    with measuring_progress(title, not is_live, say) as progress:
        found = asyncio.run(measured_folder(machine, workload, dict(os.environ), progress))
    name = workload.model.name
    return copy_for(found, folder / "profiles", name, machine, choices.most_ranks)


def _finish(result: Mapping[str, Any], output: str) -> None:
    from heddle.train.summary import summary

    if output == "json":
        click.echo(json.dumps(result))
        return
    for sentence in summary(result):
        click.echo(sentence)
