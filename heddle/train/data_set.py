"""The data set of a run, which is made of the job's texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heddle.local.child import run_heddle
from heddle_operator.apis.heddlejob import HeddleJob


async def make_data(
    job: HeddleJob,
    folder: str,
    builtin: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> HeddleJob:
    """The job on pairs that are made of its texts in a folder; without texts as it is.

    Args:
        job: what is trained.
        folder: for the pairs.
        builtin: options of `heddle data prepare` that stand for the built-in text.
        environment: of the processes that make them; None: that of this one.

    Raises:
        ProcessFailed: a text cannot be read, or the pairs cannot be written.
    """
    for command in job.spec.data.commands(folder, builtin):
        await run_heddle(command, "the data set cannot be made", environment)
    return job.with_data(folder)
