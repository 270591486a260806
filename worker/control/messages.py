"""The messages between an agent and its processes: one frozen model for each kind.

All travel as JSON and are told apart by `type`.  Agent and process are of one version, so a message
that is none of these is a defect of ours, and raises.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from worker.contract import (
    Directive,
    EvaluationRecord,
    RankReport,
    SaveRecord,
    StepRecord,
    SwitchRecord,
)
from worker.error_kinds import Trouble


class Message(BaseModel):
    """One message; NaN travels as the string "NaN"."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def to_line(self) -> bytes:
        """The message as one line of JSON."""
        return self.model_dump_json().encode() + b"\n"


class Beat(Message):
    """A heartbeat of a process, and what it does."""

    type: Literal["beat"] = "beat"
    progress: int
    part: str
    waiting: bool


class Reported(Message):
    """Where a rank is and what it holds."""

    type: Literal["report"] = "report"
    rank: RankReport


class Stepped(Message):
    """A trained step; `compute_s` is its time without waiting."""

    type: Literal["step"] = "step"
    record: StepRecord
    compute_s: float | None = None


class Evaluated(Message):
    """An evaluation of the model."""

    type: Literal["evaluation"] = "evaluation"
    record: EvaluationRecord


class Switched(Message):
    """A rank's part of a switch."""

    type: Literal["switch"] = "switch"
    record: SwitchRecord


class Saved(Message):
    """A rank's part of a save, which has ended."""

    type: Literal["save"] = "save"
    record: SaveRecord


class StoreListens(Message):
    """The address of the pod's store."""

    type: Literal["store"] = "store"
    address: str


class Failed(Message):
    """What ended a process; its trace is in the pod's log."""

    type: Literal["error"] = "error"
    trouble: Trouble


class Follow(Message):
    """The newest directive."""

    type: Literal["directive"] = "directive"
    directive: Directive


class HaltNow(Message):
    """Leave the world of an epoch, which lost a peer."""

    type: Literal["halt"] = "halt"
    epoch: int
    sentence: str


class Save(Message):
    """Save at the next boundary."""

    type: Literal["save-now"] = "save-now"


class Suspend(Message):
    """Save at the next boundary, and train no further once the checkpoint is whole."""

    type: Literal["suspend"] = "suspend"


class Fork(Message):
    """Make a process that runs `entry`, a `module:function`; its channel comes with the message."""

    type: Literal["fork"] = "fork"
    key: int
    entry: str
    arguments: dict[str, Any]


class Warm(Message):
    """The fork server can fork."""

    type: Literal["warm"] = "warm"


class Forked(Message):
    """A process runs."""

    type: Literal["forked"] = "forked"
    key: int
    pid: int


class ForkRefused(Message):
    """No process was made."""

    type: Literal["refused"] = "refused"
    key: int
    error: str


class Exited(Message):
    """A process ended, with its exit status or minus the signal."""

    type: Literal["exited"] = "exited"
    pid: int
    code: int


class Alive(Message):
    """The fork server had nothing else to say for a second."""

    type: Literal["alive"] = "alive"


FromProcess = Beat | Reported | Stepped | Evaluated | Switched | Saved | StoreListens | Failed
ToProcess = Follow | HaltNow | Save | Suspend
FromForkServer = Warm | Forked | ForkRefused | Exited | Alive
_BY_TYPE = Field(discriminator="type")
FROM_PROCESS: TypeAdapter[FromProcess] = TypeAdapter(Annotated[FromProcess, _BY_TYPE])
TO_PROCESS: TypeAdapter[ToProcess] = TypeAdapter(Annotated[ToProcess, _BY_TYPE])
FROM_FORK_SERVER: TypeAdapter[FromForkServer] = TypeAdapter(Annotated[FromForkServer, _BY_TYPE])
