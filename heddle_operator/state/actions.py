"""Possible actions: each is one intended effect.

Invariant: effects are named, so that applying an action twice equals applying it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from heddle_operator.state.epoch_record import Failure, Outcome, Seal, StartFailure
from heddle_operator.state.plan_reply import PlanKey
from heddle_operator.state.reasons import FailedReason, MoveKind
from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import UNLIMITED, GpuLimits
from planner.plans.plan import Plan
from planner.wording import counted
from worker.contract import Directive, Halt, Look, Reason


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """Search a plan; the answer is part of a later Observed.

    Attributes:
        max_gpus: that the plan may use of these.
        reason: why it is asked for; a move that is forced goes before others.
    """

    composition: Composition
    current: Plan | None
    max_gpus: GpuLimits = UNLIMITED
    reason: Reason = "join"

    @property
    def key(self) -> PlanKey:
        """Under which the answer is filed."""
        current = self.current.digest if self.current else ""
        return PlanKey(self.composition.digest, current, str(self.max_gpus))

    def __str__(self) -> str:
        return f"search a plan for {self.gpus_on_nodes}"

    @property
    def gpus_on_nodes(self) -> str:
        """Purpose of the plan, in words."""
        nodes = counted(len(self.composition.nodes), "node")
        most = f"at most {self.max_gpus} of " if self.max_gpus else ""
        return f"{most}{counted(self.composition.gpus, 'GPU')} on {nodes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptPlan:
    """Create the record of an epoch: the one atomic write.

    A record that exists means that another operator won.

    Attributes:
        step_s: predicted seconds of a step; None where nobody predicted it.
        group_bytes: (GPU type of the plan, bytes that NCCL holds there for each communicator), as
            the planner counted them; empty where nobody counted.
        cause: errors that it recovers from.
        steps: that its ranks train to.
        is_emergency: the live plan without some replicas, for which the planner was not asked.
        max_gpus: that the plan was limited to; None: it might use them all.
        moved_by: what forced the job off the plan before; None: nothing did.
    """

    epoch: int
    plan: Plan
    reason: Reason
    composition: Composition
    step_s: float | None = None
    group_bytes: tuple[tuple[str, int], ...] = ()
    cause: tuple[Failure, ...] = ()
    steps: int | None = None
    is_emergency: bool = False
    max_gpus: int | None = None
    moved_by: MoveKind | None = None

    def __str__(self) -> str:
        return (
            f"adopt epoch {self.epoch} ({self.reason}): {', '.join(map(str, self.plan.templates))}"
        )


@dataclass(frozen=True, slots=True)
class SealEpoch:
    """Write once how the epoch is formed."""

    epoch: int
    seal: Seal

    def __str__(self) -> str:
        return f"seal epoch {self.epoch} with {counted(len(self.seal.members), 'member')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEpoch:
    """Write the outcome of an epoch.

    Attributes:
        failures: errors that its plan failed with.
        start_failures: nodes on which its pods did not start.
        failed: why the job failed; None where it did not.
        step: of an epoch that is left behind, the newest known step.
        by_suspension: it is given up because the job is suspended.
    """

    epoch: int
    outcome: Outcome
    message: str = ""
    failures: tuple[Failure, ...] = ()
    start_failures: tuple[StartFailure, ...] = ()
    failed: FailedReason | None = None
    step: int | None = None
    by_suspension: bool = False

    def __str__(self) -> str:
        return f"epoch {self.epoch} is {self.outcome}" + (
            f": {self.message}" if self.message else ""
        )


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create a worker pod on a node, with that many GPUs."""

    name: str
    node: str
    ordinal: int
    gpus: int

    def __str__(self) -> str:
        return f"create pod {self.name} with {counted(self.gpus, 'GPU')}"


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a worker pod; one that is gone already is fine."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"delete pod {self.name}: {self.why}"


@dataclass(frozen=True, slots=True)
class EndPod:
    """Tell the agent of a pod that the job has ended; the ended pod stays, with its log."""

    name: str

    def __str__(self) -> str:
        return f"end pod {self.name}"


@dataclass(frozen=True, slots=True)
class PruneEpoch:
    """Delete the record of an epoch that nothing needs any more; one that is gone is fine."""

    epoch: int

    def __str__(self) -> str:
        return f"delete the record of epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class SendDirective:
    """PUT a directive to the agent of a pod."""

    pod: str
    directive: Directive

    def __str__(self) -> str:
        return f"{self.directive.phase} epoch {self.directive.epoch} at {self.pod}"


@dataclass(frozen=True, slots=True)
class SendHalt:
    """PUT a halt to the agent of a pod: a peer of its ranks is lost, and cannot say so."""

    pod: str
    halt: Halt

    def __str__(self) -> str:
        return f"halt epoch {self.halt.epoch} at {self.pod}: {self.halt.reason}"


@dataclass(frozen=True, slots=True)
class SendLook:
    """Ask the agent of a pod which checkpoints the job can go on from."""

    pod: str
    look: Look

    def __str__(self) -> str:
        return f"look for checkpoints of epoch {self.look.epoch} at {self.pod}"


@dataclass(frozen=True, slots=True)
class SendSave:
    """Tell the agent of a pod that its ranks save at the next boundary."""

    pod: str

    def __str__(self) -> str:
        return f"save the state of the ranks of {self.pod}"


@dataclass(frozen=True, slots=True)
class SendSuspend:
    """Tell the agent of a pod that its ranks save at the next boundary, and stop."""

    pod: str

    def __str__(self) -> str:
        return f"suspend the ranks of {self.pod}"


EventReason = Literal[
    "Complete",
    "BackoffLimitExceeded",
    "CheckpointFailed",
    "CheckpointRefused",
    "ConfigMapMissing",
    "DeadlineExceeded",
    "DeterministicError",
    "Diverged",
    "DrainBlocked",
    "EarlierJobRemains",
    "FabricHangs",
    "Failed",
    "GPUFailed",
    "GPUsNotSeen",
    "InsufficientGPUs",
    "InvalidSpec",
    "NameTaken",
    "NewerRecord",
    "NodeFlaps",
    "NodeLeaving",
    "NodeLeftOut",
    "NodeSlow",
    "ObjectRefused",
    "OutputFailed",
    "PlanKept",
    "PlanRecommended",
    "PlanRefused",
    "PlanSelected",
    "PodsCannotStart",
    "ProgressDeadlineExceeded",
    "RankStuck",
    "RecordRefused",
    "RecordUnread",
    "ReconfigurationAborted",
    "ReconfigurationSucceeded",
    "Restored",
    "SetupRefused",
    "SlowRanks",
    "StateLost",
    "Suspended",
    "TypeSpeedDiffers",
    "WorkerLost",
]


@dataclass(frozen=True, slots=True)
class RelatedObject:
    """The object beside the job that an Event is about; a pod is in the job's namespace."""

    kind: Literal["Node", "Pod"]
    name: str


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Tell the user, once for each key; docs/reference/conditions.md explains them."""

    key: str
    reason: EventReason
    message: str
    related: RelatedObject | None = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


Action = (
    RequestPlan
    | AdoptPlan
    | SealEpoch
    | CloseEpoch
    | CreatePod
    | DeletePod
    | EndPod
    | PruneEpoch
    | SendDirective
    | SendHalt
    | SendLook
    | SendSave
    | SendSuspend
    | RecordEvent
)
