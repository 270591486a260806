"""`heddle train-policy`: train the learned planner of one model.

Invariant: what stands on disk at any moment is a whole policy, or none; a training that is killed
goes on with --resume and ends with the same weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import Progress

from heddle.cli.options import A_FILE, AT_LEAST_1, MODEL_HELP, SHOWN, Finite, format_option
from heddle.cli.progress import progress_bar
from heddle.cli.tables import aligned
from planner.errors import InvalidRequest
from planner.model.catalogue import find_model

if TYPE_CHECKING:
    from planner.policy.card import PolicyCard
    from planner.training.trainer import TrainingStep

TRAIN_HELP = """Train the policy that plans for a model; no GPU is needed.

It learns on generated compositions in minutes, and plans for others:

\b
    heddle train-policy --model llama3-8b
    heddle train-policy --model llama3-8b --resume
    heddle train-policy --model tiny-llama --output-path mine --groups 500
    heddle plan --model tiny-llama --composition demo-fast=2x4 --policy mine

docs/policy.md describes the training.
"""
SEED = click.IntRange(0, 2**31, max_open=True)
FIGURES = ("mean", "worst")  # of the evaluation
LINES = 10  # of a phase, where there is no terminal
PHASES = {"teach": "teachers", "clone": "cloning", "improve": "improving"}


@click.command("train-policy", help=TRAIN_HELP, context_settings=SHOWN)
@click.option("--model", required=True, help=MODEL_HELP)
@click.option("--types", help="GPU types to train for, joined by commas.  [default: all types]")
@click.option(
    "--groups",
    type=AT_LEAST_1,
    help="Number of groups of 16 rollouts to train on.  [default: 10000]",
)
@click.option("--seed", default=0, type=SEED, help="Seed of all random draws.")
@click.option(
    "--compositions", type=AT_LEAST_1, help="Number of compositions to train on.  [default: 1128]"
)
@click.option(
    "--teacher-steps",
    type=AT_LEAST_1,
    help="Number of steps of each teacher's search.  [default: 3000]",
)
@click.option(
    "--output-path",
    type=A_FILE,
    help="Folder for the policy.  [default: policy-NAME in the current folder]",
)
@click.option("--overwrite", is_flag=True, help="Write to the folder even if it holds files.")
@click.option("--resume", is_flag=True, help="Resume a training that was stopped or killed.")
@click.option(
    "--keep-every-s",
    default=15.0,
    type=Finite(0),
    help="Seconds between states of the training on disk.",
)
@format_option("table")
def train_policy(
    model: str,
    types: str | None,
    seed: int,
    output_path: Path | None,
    overwrite: bool,
    resume: bool,
    keep_every_s: float,
    output: str,
    **numbers: int | None,
) -> None:
    """Train a policy and write its files."""
    shape = find_model(model)
    where = Path(f"policy-{shape.name}") if output_path is None else output_path
    _require_free(where, overwrite=overwrite, resume=resume)
    from planner.compilation import warm_up  # only now, as torch and numba are slow to import
    from planner.training.compositions import all_types, types_named
    from planner.training.curriculum import curriculum_of
    from planner.training.run import Training
    from planner.training.settings import TrainingSettings

    asked: dict[str, Any] = {name: n for name, n in numbers.items() if n is not None}
    settings = TrainingSettings(seed=seed, **asked)
    names = all_types(shape.name) if types is None else types_named(shape.name, types)
    warm_up()
    curriculum = curriculum_of(shape, names, settings)
    found = len(curriculum.training)
    if found < settings.compositions:
        sys.stderr.write(
            f"there are {found} different compositions of these types to train on, not "
            f"{settings.compositions}\n"
        )
    training = Training(curriculum, settings, where)
    if resume:
        training.resume()
    try:
        with progress_bar() as bar:
            card = training.run(_Display(bar).show, _commit(), keep_every_s)
    except KeyboardInterrupt:
        sys.stderr.write(
            f"The training was interrupted; the same command with --resume goes on from {where}.\n"
        )
        raise
    if output == "json":
        click.echo(json.dumps(card.to_json(), indent=2))
        return
    click.echo(_evaluation_table(card))
    click.echo(
        f"\ntrained in {card.seconds['clock']:.0f} s ({card.seconds['processor']:.0f} s of "
        f"processor time); written to {where}\n"
        f"use it with `heddle plan --model {model} --policy {where}`"
    )


def _evaluation_table(card: PolicyCard) -> str:
    """How good the policy is on compositions that were held back, best of 16 and of 128."""
    found = card.evaluation
    rows = [
        (rollouts, *(f"{found[f'best_of_{rollouts}_percent'][of]:.1f} %" for of in FIGURES))
        for rollouts in ("16", "128")
    ]
    table = aligned(("best of", *FIGURES), rows)
    return f"throughput on {found['on']}, as a share of {found['reference']}\n{table}"


def _require_free(folder: Path, *, overwrite: bool, resume: bool) -> None:
    """Check before minutes of training that the folder is there to resume, or free.

    Raises:
        InvalidPolicy: there is nothing to resume in it.
        InvalidRequest: it holds files, or cannot be written to.
    """
    if resume:
        from planner.training.checkpoint_file import read_checkpoint

        read_checkpoint(folder)
    held = [one for one in folder.iterdir() if one.suffix != ".new"] if folder.is_dir() else []
    if held and not (overwrite or resume):  # what a kill left half written is nobody's
        raise InvalidRequest(
            f"the folder {folder} holds files already; give --overwrite, name another "
            f"--output-path, or give --resume to go on with a training that was stopped",
            code="Taken",
        )
    _require_writable(folder)


def _require_writable(folder: Path) -> None:
    """Make the folder, unless it is there.

    Raises:
        InvalidRequest: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK) else "permission denied"
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        raise InvalidRequest(
            f"the policy cannot be written to {folder}: {reason}; name another --output-path",
            code="Unwritable",
        )


class _Display:
    """A progress bar on a terminal; else some lines a phase, on stderr."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._phase = bar, ""
        self._task = bar.add_task("building the training set", total=None)

    def show(self, step: TrainingStep) -> None:
        """Show how far it is."""
        found = _figures(step)
        if step.phase != self._phase:
            self._phase = step.phase
            self._bar.reset(self._task, total=step.total)
        said = f"{PHASES[step.phase]} {found}".rstrip()
        self._bar.update(self._task, description=said, completed=step.done)
        is_due = step.done % max(1, step.total // LINES) == 0
        if self._bar.disable and (is_due or step.done == step.total):
            sys.stderr.write(
                f"{PHASES[step.phase]} {step.done}/{step.total} {found}".rstrip() + "\n"
            )
            sys.stderr.flush()


def _figures(step: TrainingStep) -> str:
    """How good the policy is, where it is being improved; "" before."""
    if step.phase != "improve":
        return ""
    looked = f"best of 16 {step.last:.1f} % (best so far {step.best:.1f} %)"
    return f"{looked if step.best else 'not evaluated yet'}, entropy {step.entropy:.2f}"


def _commit() -> str:
    """The commit of this code, with a + if files differ from it; empty outside a repository."""
    here = str(Path(__file__).parent)
    git = ["git", "-C", here, "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
