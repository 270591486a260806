"""The beginning of a run: its first step or a checkpoint, by the rule of the operator.

Invariant: nothing is changed, and no weight is read.
"""

from __future__ import annotations

import asyncio
import functools
import tempfile
from dataclasses import dataclass

from heddle.train.checkpoints import path_of
from heddle.train.data_set import make_data
from heddle.train.measured import data_options
from heddle_operator.apis.errors import InvalidJob
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.epochs.chosen_checkpoint import (
    newest_of,
    none_is_whole,
    why_refused,
    why_unread,
)
from planner.wording import counted
from worker.checkpoint.looking import look
from worker.checkpoint.vaults.open_vault import open_vault
from worker.contract import Look
from worker.data.digest import data_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a run begins.

    Attributes:
        path: of the job's checkpoints.
        step: of the checkpoint that it goes on from; None: it begins anew.
        steps: of the job.
    """

    path: str
    step: int | None
    steps: int

    @property
    def steps_left(self) -> int:
        """Number of steps that the run trains."""
        return max(0, self.steps - (self.step or 0))

    @property
    def note(self) -> str:
        """The sentence that names the checkpoint; "" where the run begins anew."""
        if self.step is None:
            return ""
        trained = f"trains {counted(self.steps_left, 'step')}"
        if not self.steps_left:
            trained = f"trains no step, as the job has {counted(self.steps, 'step')}"
        return (
            f"the run goes on from the checkpoint of step {self.step} in {self.path} and "
            f"{trained}; --fresh begins anew"
        )


def beginning(job: HeddleJob, *, is_fresh: bool, makes_data: bool = False) -> Beginning:
    """Where a run of the job begins.

    Args:
        job: as it runs here.
        is_fresh: its checkpoints go first.
        makes_data: texts are made into pairs to compare them with those of a checkpoint, as the
            run does; else pairs alone are compared.

    Raises:
        InvalidJob: its checkpoints are of another job, are damaged or cannot be read.
        ProcessFailed: the pairs cannot be made.
    """
    path, training = path_of(job), job.training
    if is_fresh:
        return Beginning(path=path, step=None, steps=training.steps)
    is_compared = makes_data or not job.spec.data.commands("", data_options())
    digest = functools.cache(lambda: _digest(job)) if is_compared else None
    told = look(open_vault(path), path, Look(epoch=1, training=training), digest)
    newest = newest_of(told)
    unread = why_unread(told)
    if unread:
        raise InvalidJob(unread, code="Unreadable")
    refused = why_refused(told, newest) or none_is_whole(told, newest)
    if refused:
        raise InvalidJob(f"{refused}, or --fresh", code="Refused")
    step = newest.step if newest is not None else None
    return Beginning(path=path, step=step, steps=training.steps)


def _digest(job: HeddleJob) -> str:
    """The digest of the job's data; pairs of its texts are made in a folder that goes."""
    with tempfile.TemporaryDirectory(prefix="heddle-data-") as folder:
        made = asyncio.run(make_data(job, folder, data_options()))
        return data_digest(made.training.data)
