"""Contract of operator and worker.

HTTP + JSON between the operator and the agent of each worker pod.

    PUT /v1/directive   a `Directive`: be this, at this epoch.  Idempotent.  401 wrong token, 400
                        not a directive or a plan that does not tile the model, 409 an older epoch,
                        or the same epoch with another plan digest.  An agent that says
                        `reads_columns` takes it by column, with `Content-Encoding: gzip`.
    GET /v1/report      a `Report`: I am this.  `?after=VERSION&wait_s=S` answers when the report's
                        version passes VERSION, or after S seconds; `&steps_from=K` leaves records
                        of steps and evaluations before step K out.
    PUT /v1/halt        a `Halt`: a peer of this epoch is lost and cannot say so; its ranks leave
                        their world at once and stand `halted`.  Idempotent.  401 wrong token.
    PUT /v1/checkpoints a `Look`: tell in the report which checkpoints the job can go on from.
                        Idempotent.  401 wrong token.
    PUT /v1/save        save at the next boundary, once all agents were told.  401 wrong token.
    PUT /v1/suspend     save at the next boundary and train no further once the checkpoint is whole;
                        train on if that fails.  Once all agents were told.  401 wrong token.
    GET /metrics        Prometheus text.
    PUT /v1/end         the job has ended: the pod ends too, with 0 if no rank of it has anything
                        left to train, else with 1.  Idempotent.  401 wrong token.
    GET /healthz        200 while the agent's loop runs.

Two versions may meet, because the pods of a job keep their image while the operator is upgraded.
So fields are only ever added, each with a default that means what was so before; a reader leaves
out what it does not know; what would change its meaning gets a new path (`/v2/...`) beside the old
one for one version.  `tests/data/contract` holds what earlier versions wrote.  The options of the
agent's command are a message, too: `contract_version.VARIABLE` in its environment has the version.

The operator calls, agents call nobody.  One rank process per GPU; its name for life is (pod, slot),
its rank belongs to an epoch.  `step` always counts *completed* optimizer steps, so it is also the
index of the next step to train.

The life of an epoch e (source: torchft's quorum and commit vote are the model):

    prepare  every member (old and new) gets the directive with phase `prepare`; new ranks are
             forked, all form transport and groups and build the next engine in the background
             *while the old epoch trains*; each rank then reports `pending_epoch = e`.
    switch   the directive again, phase `switch`.  The ranks agree on the step boundary themselves
             (a slot in the norm's all-reduce), move state, verify, vote and train on: `epoch = e`,
             phase `training`.  Members without a rank in the new plan end with phase `left`.
    abort    the directive again, phase `abort`: until all have voted the old epoch goes on
             untouched (`pending_epoch` is null).
    halt     a member that fell silent closes no connection, so the operator tells the survivors
             (`Halt`), which then close theirs.
    recover  after a loss the survivors stand `halted`, each with what it holds (`epoch`, `step`,
             `gradients_step`, `norm_step`, ...); `resume_of` says where they can go on, the new
             epoch's directive carries it in `resume`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from worker.checkpoint_records import SAVES_KEPT as SAVES_KEPT
from worker.checkpoint_records import FoundCheckpoint as FoundCheckpoint
from worker.checkpoint_records import FoundCheckpoints as FoundCheckpoints
from worker.checkpoint_records import Look as Look
from worker.checkpoint_records import Restore as Restore
from worker.checkpoint_records import SaveRecord as SaveRecord
from worker.columns import directive_by_row
from worker.contract_version import CONTRACT
from worker.gpu_wire import WireName
from worker.step_record import EvaluationRecord as EvaluationRecord  # the contract's, by its name
from worker.step_record import StepRecord as StepRecord
from worker.training_settings import Frozen
from worker.training_settings import TrainingSpec as TrainingSpec

DirectivePhase = Literal["prepare", "switch", "abort"]
Reason = Literal["start", "join", "drain", "loss"]
RankPhase = Literal[
    "starting",  # forked, not yet connected
    "prepared",  # warm, part of the transport group of `pending_epoch`, holds nothing
    "training",
    "switching",  # between two epochs
    "saving",  # all steps trained; its part of the final weights is not on disk yet
    "halted",  # an error broke its world; it holds state and waits for a directive
    "suspending",  # stands at a boundary until its part of a checkpoint is saved, or is not
    "suspended",  # its part of a whole checkpoint is saved; it trains no further
    "left",  # not part of the new plan; about to exit
    "done",  # all steps trained, and its part of the final weights read back from the disk
]
ErrorKind = Literal[
    "lost peer",  # a peer went or was given up: recover without it
    "device",  # this GPU or its memory failed: recover, and leave it out for some time
    # loss or gradient norm is not finite, and the job asks to stop then; of a rank that is `saving`
    # or `done`: the final weights are those before that step
    "numeric",
    # the ranks cannot work together as the job is set up (its wire, unlike versions of NCCL, two
    # ranks on one GPU): let the plan rest, and no GPU
    "setup",
    "fabric",  # the first operations of a new plan's wires did not end: its network does not carry
    "output",  # the final weights cannot be written yet; the state is kept and it tries again
    "checkpoint",  # the checkpoint of the start is damaged or of another job: take another one
    "store",  # the store of checkpoints cannot be read now: try again
    "other",  # anything else; the same twice at one step would come for ever
]
KeptAs = Literal[
    "folder",  # one folder that `transformers` loads
    "parts",  # each pod has its part, to be merged by `heddle weights export`
]
LAPS = (
    "drain",
    "transfer",
    "verify",
    "vote",
    "flip",
)  # parts of a switch that ranks measure, in order
RECORDS_KEPT = 4096  # of steps, of evaluations, of switches: the newest that an agent reports
RELEASE_BEFORE_S = 5.0  # a leaving pod trains on until this long before its end
EXITS_KEPT = 64  # rank processes that ended: likewise
READING = "reading data"  # part of a rank that waits for the disk of its training data
# Such a rank is waited for so long.  A client of NFS or Lustre blocks while its server fails over:
# Lustre gives its clients up to 15 minutes to come back (recovery_time_hard), and this is twice
# that.  A rank that is killed earlier costs the state and reads no sooner.
READING_S = 1_800.0


class Member(Frozen):
    """One rank process in an epoch's union of old and new ranks.

    Its index in `Directive.members` is its transport rank.
    """

    pod: str
    slot: Annotated[int, Field(ge=0)] = Field(description="of the pod's GPUs")
    node: str
    gpu: Annotated[int, Field(ge=0)] = Field(
        description="of the node's GPUs, as the plan's placement counts them"
    )
    rank: int | None = Field(description="in the new plan; null: it leaves")
    holds: int | None = Field(
        description="the epoch whose layout it holds, with state; null: it holds nothing"
    )
    also_holds: int | None = Field(
        default=None,
        description="a second layout that it holds as well: it voted and never learnt the outcome",
    )


class Resume(Frozen):
    """Where halted survivors go on after a loss."""

    step: int = Field(description="completed steps to go on from")
    gradient_norm: float | None = Field(
        default=None,
        description=(
            "if given, survivors that hold reduced gradients of step `step - 1` apply them with "
            "this norm first"
        ),
    )


class Directive(Frozen):
    """Operator to agent: be this, at this epoch.

    Members and placements may be written by column (`worker.columns`).
    """

    contract: int = Field(default=CONTRACT, description="version that the operator writes")
    job: str
    epoch: Annotated[int, Field(ge=1)]
    phase: DirectivePhase
    reason: Reason
    plan: dict[str, Any] = Field(description="the new plan, as `Plan.to_json`")
    plan_digest: str
    layouts: dict[int, dict[str, Any]] = Field(
        default_factory=dict, description="the plan of every epoch that a member `holds`"
    )
    members: tuple[Member, ...] = Field(
        description="new ranks first in rank order, then those that leave"
    )
    store: str = Field(
        description=(
            "host:port of the store that the epoch meets at; on an agent that survives into it"
        )
    )
    training: TrainingSpec
    resume: Resume | None = None
    restore: Restore | None = None
    step_s: float | None = Field(default=None, description="predicted seconds of a step")
    group_bytes: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict,
        description="of each GPU type, that NCCL holds for a communicator; absent: as modelled",
    )

    @classmethod
    def read(cls, data: object) -> Self:
        """The directive in plain data; fields of a newer operator are left out, in sections too.

        Raises:
            ValidationError: it is none.
        """
        return cls.model_validate(data, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _by_row(cls, data: Any) -> Any:
        return directive_by_row(data) if isinstance(data, Mapping) else data


class Halt(Frozen):
    """Operator to agent: leave the world of this epoch, a peer of it is lost."""

    epoch: Annotated[int, Field(ge=1)]
    reason: str = Field(description="one sentence, which names the peer")


class SwitchRecord(Frozen):
    """One rank's part of one switch.  All times by the monotonic clock of its machine."""

    epoch: int
    slot: int
    pid: int
    step: int = Field(description="completed steps at which the switch happened")
    stopped_s: float | None = Field(
        description=(
            "end of the last step that the rank trained before, or start of a first one that was "
            "cut; null: it trained none"
        )
    )
    halted_s: float | None = Field(
        default=None, description="when it noticed a loss and halted; null: it did not"
    )
    laps: dict[str, float] = Field(description="when each part of LAPS ended")
    first_step_s: float | None = Field(default=None, description="when the first new step started")
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_needed: int = Field(
        default=0, description="bytes of the new layout that the rank did not hold before"
    )
    bytes_spread: int = Field(
        default=0, description="bytes of weights that came from their owners afterwards, with ZeRO"
    )
    state_digest_before: str | None = None
    state_digest_after: str | None = None


class RankReport(Frozen):
    """One rank process."""

    slot: int
    pid: int
    started_s: float
    phase: RankPhase
    rank: int | None = None
    epoch: int | None = Field(default=None, description="whose layout it holds, with state")
    also_epoch: int | None = Field(
        default=None,
        description=(
            "a second layout it holds as well: it voted for that epoch and never learnt the outcome"
        ),
    )
    pending_epoch: int | None = Field(
        default=None, description="the epoch it is ready to switch to"
    )
    failed_epoch: int | None = Field(
        default=None, description="the newest epoch that it could not prepare; `error` says why"
    )
    step: int = Field(default=0, description="completed steps of the state it holds")
    gradients_step: int | None = Field(
        default=None,
        description="halted: index of the step whose reduced gradients it holds, not yet applied",
    )
    norm_step: int | None = Field(
        default=None, description="index of the newest step whose norm it knows"
    )
    gradient_norm: float | None = Field(default=None, description="of step `norm_step`")
    error: str | None = None
    error_kind: ErrorKind | None = Field(default=None, description="of `error`")
    error_site: str | None = Field(
        default=None,
        description=(
            "class of the error and the function of Heddle that it came from: equal whenever the "
            "same error comes again, unlike `error`; null: no exception, or an earlier version"
        ),
    )
    beat_age_s: float = Field(
        default=0.0, description="seconds since its newest heartbeat, when the report was made"
    )
    part: str = Field(default="", description="what it does now, as its newest heartbeat says")
    progress: int = Field(
        default=0, description="grows with each micro-batch, message and part that it has done"
    )
    waiting: bool = Field(default=False, description="it waits for its peers, not they for it")
    compute_s: float | None = Field(
        default=None,
        description=(
            "seconds of its own forward and backward passes in a step of its epoch, waiting left "
            "out: the median of the newest 16 steps; null before so many"
        ),
    )
    kept_as: KeptAs | None = Field(
        default=None, description="how the final weights are kept, once all steps are trained"
    )
    overruns: int = Field(
        default=0, description="emulated stages that took over 5 % longer than their profile"
    )


class RankExit(Frozen):
    """A rank process that ended; what it had said last tells why, and what it held."""

    slot: int
    pid: int = Field(description="negative, a number of its own: no process could be made")
    code: int = Field(description="exit status, or minus the signal")
    at_s: float
    error: str | None = None
    error_kind: ErrorKind | None = Field(default=None, description="of `error`")
    error_site: str | None = Field(default=None, description="of `error`, as in `RankReport`")
    epoch: int | None = Field(default=None, description="whose layout it held")
    step: int = Field(default=0, description="completed steps of its state")


class Report(Frozen):
    """Agent to operator: I am this."""

    contract: int = Field(default=CONTRACT, description="version that the agent writes")
    job: str
    pod: str
    node: str
    version: int = Field(description="grows with every change other than a further step record")
    agent_pid: int
    agent_started_s: float
    fork_server_pid: int | None = None
    store_pid: int | None = None
    store: str | None = Field(
        default=None, description="host:port of this pod's store; null while it starts"
    )
    ready: bool = Field(description="the fork server is warm and the store is up")
    reads_columns: bool = Field(
        default=False, description="it takes a directive by column, compressed with gzip"
    )
    looks: bool = Field(default=False, description="it looks for checkpoints where it is asked")
    wire: WireName | None = Field(
        default=None, description="that its ranks use; null: the agent does not say"
    )
    leaving_at_s: float | None = Field(
        default=None, description="it got a notice: it will be gone then"
    )
    epoch: int | None = Field(default=None, description="of the newest directive it accepted")
    phase: DirectivePhase | None = Field(default=None, description="of that directive")
    plan_digest: str | None = None
    ranks: tuple[RankReport, ...] = ()
    exits: tuple[RankExit, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    switches: tuple[SwitchRecord, ...] = ()
    evaluations: tuple[EvaluationRecord, ...] = ()
    checkpoints: FoundCheckpoints | None = Field(
        default=None, description="the answer to the newest look; null: none was asked for"
    )
    saves: tuple[SaveRecord, ...] = ()


class Refusal(Frozen):
    """The body of every 4xx answer."""

    error: str


def resume_of(survivors: list[RankReport]) -> Resume | None:
    """Where halted survivors can go on.

    The newest step that all of them can reach, or None if they cannot agree.

    Once any rank passed the plan-wide norm, every rank had all its gradients in, so all roll
    forward: those that have not applied the step do so with the norm that the others know.
    Otherwise all are at the same step and the unfinished one is trained again.
    """
    if not survivors:
        return None
    newest = max(rank.step for rank in survivors)
    if all(rank.step == newest for rank in survivors):
        # Nobody applied step `newest`; it counts if its norm is known and all hold its gradients.
        index = newest
        norms = {rank.gradient_norm for rank in survivors if rank.norm_step == index}
        if norms and all(rank.gradients_step == index for rank in survivors):
            return Resume(step=newest + 1, gradient_norm=norms.pop())
        return Resume(step=newest)
    index = newest - 1
    norms = {rank.gradient_norm for rank in survivors if rank.norm_step == index}
    behind = [rank for rank in survivors if rank.step != newest]
    if norms and all(rank.step == index and rank.gradients_step == index for rank in behind):
        return Resume(step=newest, gradient_norm=norms.pop())
    return None
