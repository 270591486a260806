"""The checkpoints of a run on this machine: where they are, and what `--fresh` removes of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from heddle.train.recorder import Recorder
from heddle_operator.apis.checkpoint import Checkpoint
from heddle_operator.apis.heddlejob import HeddleJob
from heddle_operator.state.saves import Saves, Told
from worker.checkpoint.attempts import complete, objects_of
from worker.checkpoint.vaults.open_vault import open_vault
from worker.checkpoint.vaults.vault import BROKEN_OFF_S, VaultFailed
from worker.contract import SaveRecord

FOLDER = "checkpoints"  # under the output folder, where the job names no other


def saved_here(job: HeddleJob, output: Path) -> HeddleJob:
    """The job, which saves checkpoints under its output folder unless it names another path."""
    if job.spec.checkpoint is not None:
        return job
    checkpoint = Checkpoint(path=str(output.absolute() / FOLDER))
    spec = job.spec.model_copy(update={"checkpoint": checkpoint})
    return job.model_copy(update={"spec": spec})


def path_of(job: HeddleJob) -> str:
    """Where the job's own checkpoints are."""
    checkpoint = job.training.checkpoint
    assert checkpoint is not None, "a run on this machine saves"
    return checkpoint.path


def has_checkpoint(job: HeddleJob) -> bool:
    """Whether a complete checkpoint of the job's name is there.

    Raises:
        WorkerError: the folder cannot be read.
    """
    return bool(complete(open_vault(path_of(job)).names()))


def saved_state(job: HeddleJob, saves: Iterable[SaveRecord]) -> dict[str, Any] | None:
    """The newest whole checkpoint of a run as plain data; None if it saved none."""
    rows = [save for save in saves if save.outcome == "saved"]
    newest = max((save for save in rows if save.rank == 0), key=_age, default=None)
    if newest is None:
        return None
    parts = [save for save in rows if _age(save) == _age(newest)]
    return {
        "folder": path_of(job),
        "step": newest.step,
        "bytes": sum(save.num_bytes for save in parts),
        "seconds": newest.seconds,
    }


def begun_from_step(recorder: Recorder) -> int | None:
    """Step of the checkpoint that a run began from; None: it began anew.

    An epoch that trained nothing may have found its checkpoint damaged.
    """
    restores = recorder.restores
    trained = [epoch for epoch in restores if recorder.steps.get(epoch)]
    begun = min(trained, default=max(restores, default=None))
    return restores[begun].step if begun is not None else None


def going_on_from(job: HeddleJob, recorder: Recorder) -> dict[str, Any] | None:
    """The checkpoint that a later run of the job goes on from, as plain data; None: there is none.

    A run that saved none leaves the one that was there before.
    """
    saved = saved_state(job, recorder.saves.values())
    if saved is not None:
        return {"folder": saved["folder"], "step": saved["step"]}
    begun = [recorder.restores[epoch].step for epoch in sorted(recorder.restores)]
    step = begun[-1] if begun else recorder.begins_at
    return {"folder": path_of(job), "step": step} if step is not None else None


def where_it_goes_on(job: HeddleJob, recorder: Recorder) -> str:
    """The beginning of a later run of the job, as a clause."""
    found = going_on_from(job, recorder)
    if found is None:
        return "no checkpoint is whole, so the same command begins anew with --fresh"
    return f"the same command goes on from the checkpoint of step {found['step']}"


def failed_save(saves: Iterable[SaveRecord]) -> SaveRecord | None:
    """The newest save of a run that failed after its newest whole checkpoint; None: none did."""
    return Saves.of((Told(save, {}) for save in saves), clock_offset_s=0.0).failed


def _age(save: SaveRecord) -> tuple[int, int]:
    return save.epoch, save.step


def remove_checkpoints(job: HeddleJob) -> None:
    """Remove all checkpoints of the job's name, manifests first, and what dead writers left.

    No other file goes.

    Raises:
        WorkerError: one of them cannot be removed.
    """
    vault = open_vault(path_of(job))
    for attempt, names in objects_of(vault.names()).items():
        for name in sorted(names, key=attempt.manifest.__ne__):
            vault.remove(name)
    with contextlib.suppress(VaultFailed):  # the next save tries again, and says why it failed
        vault.tidy(BROKEN_OFF_S)
