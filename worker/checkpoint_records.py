"""Checkpoints in the contract: what a pod sees in a folder, what ranks saved, where a start begins.

Part of the contract of worker and operator; both read it from plain data.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from worker.training_settings import Frozen, TrainingSpec

FOUND_MOST = 16  # checkpoints of a folder that an agent tells of, the newest
SAVES_KEPT = 16  # saves of its ranks that an agent tells of, the newest
SaveOutcome = Literal[
    "saved",  # this rank's part; of rank 0: the whole checkpoint
    "failed",  # the store failed, or is silent; the next boundary tries anew once it answers
    "given up",  # another save, or another epoch, began before it was whole; its error says why
    "late",  # the save before was still written, so this one was left out
]
RefusedCode = Literal[
    "damaged",  # cut, or with other bytes than were written
    "newer",  # in a form of a later version
    "other",  # of another model, batch, seed or data set
    "unread",  # the store fails
]


class Restore(Frozen):
    """Checkpoint that the ranks of a start go on from."""

    path: str = Field(description="folder of the checkpoints, as every pod sees it")
    epoch: int = Field(description="that saved it")
    step: int = Field(description="completed steps in it")
    manifest: str = Field(description="digest of its manifest, which every rank must find")


class Look(Frozen):
    """Operator to agent: look which checkpoints the job can go on from."""

    epoch: int = Field(description="that is to start; an answer belongs to it")
    training: TrainingSpec = Field(description="of the job; names the folder of its checkpoints")
    run: str | None = Field(
        default=None,
        description="whose saves count before those of later runs; null: all runs count alike",
    )


class FoundCheckpoint(Frozen):
    """A checkpoint with a whole manifest, which the job can go on from."""

    epoch: int = Field(description="that saved it, as its name has it")
    step: int
    manifest: str = Field(description="digest of its manifest")


class RefusedCheckpoint(Frozen):
    """A checkpoint that the job cannot go on from."""

    epoch: int
    step: int
    code: RefusedCode
    error: str


class FoundCheckpoints(Frozen):
    """An agent's answer to a look."""

    epoch: int = Field(description="that it was asked for")
    path: str
    found: tuple[FoundCheckpoint, ...] = Field(default=(), description="the newest first")
    refused: tuple[RefusedCheckpoint, ...] = Field(default=(), description="the newest first")
    last_epoch: int = Field(
        default=0, description="the largest that began to save there, whole or not"
    )
    error: str | None = Field(default=None, description="why the folder cannot be read")
    age_s: float = Field(default=0.0, description="seconds since the look, as it was reported")

    @property
    def newest_epoch(self) -> int:
        """The largest number of an epoch that saved there; 0 where none did.

        Half a save counts: ranks that wrote into it would mix their parts with it.
        """
        epochs = [one.epoch for one in self.found] + [one.epoch for one in self.refused]
        return max([self.last_epoch, *epochs])


class BestCheckpoint(Frozen):
    """The whole checkpoint with the lowest held-out loss."""

    epoch: int = Field(description="that saved it")
    step: int = Field(description="completed steps in it")
    held_out_loss: float


class SaveRecord(Frozen):
    """One save of one rank."""

    epoch: int
    step: int = Field(description="completed steps of the state")
    rank: int = Field(description="in the plan; rank 0 commits the whole checkpoint")
    outcome: SaveOutcome
    copy_s: float = Field(default=0.0, description="seconds that training waited")
    seconds: float = Field(default=0.0, description="from the boundary to the end")
    num_bytes: int = Field(default=0, description="that this rank wrote")
    ended_unix_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        description="by the wall clock of its machine"
    )
    error: str | None = None
    held_out_loss: float | None = Field(
        default=None, description="of the evaluation at its step; null: there was none before it"
    )
    best: BestCheckpoint | None = Field(
        default=None, description="after this save, as rank 0 tells it where the job keeps the best"
    )
