"""`status` of a HeddleJob: its fields and their descriptions, from which the schema is generated.

`report/status.py` writes it; nothing but people and tools reads it.
Source: Kubernetes' API conventions (conditions, observedGeneration).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from worker.training_settings import Section

Bytes = Annotated[int, Field(json_schema_extra={"format": "int64"})]


class PlanStatus(Section):
    """The plan that trains."""

    digest: str | None = Field(default=None, description="Digest of the plan.")
    summary: str | None = Field(
        default=None,
        description=(
            "Templates of the plan: replicas x [GPU type, TP, layers of each stage], micro-batch."
        ),
    )
    reason: str | None = Field(
        default=None, description="Reason for its adoption: start, join, drain or loss."
    )
    cause: str | None = Field(
        default=None,
        description=(
            "Cause that forced the job off the plan before, in one word such as "
            "NodeLeaving or MaxGPUs."
        ),
    )
    templates: int | None = Field(default=None, description="Number of templates of the plan.")
    pipelines: int | None = Field(default=None, description="Number of pipelines of the plan.")
    predicted_samples_per_second: float | None = Field(
        default=None, description="Throughput that the planner's cost model predicts."
    )
    predicted_memory_bytes: Bytes | None = Field(
        default=None,
        description=(
            "Predicted peak memory of the fullest GPU, in bytes. The process needs memory "
            "for Python and torch besides."
        ),
    )


class HoldersStatus(Section):
    """Number of nodes that hold the state."""

    min_nodes: int | None = Field(
        default=None, description="Least number of nodes that hold a piece of the state."
    )
    single_pieces: int | None = Field(
        default=None, description="Number of pieces that only one node holds."
    )


class ProgressStatus(Section):
    """Progress of the training."""

    step: int | None = Field(default=None, description="Completed steps.")
    steps: int | None = Field(default=None, description="Steps after which the job is complete.")
    loss: float | None = Field(
        default=None, description="Loss of the newest step; absent where it is not finite."
    )
    held_out_loss: float | None = Field(
        default=None,
        description=(
            "Loss of the newest evaluation on the held-out part; absent where it is not finite."
        ),
    )
    held_out_step: int | None = Field(
        default=None, description="Completed steps at that evaluation."
    )
    skipped_steps: int | None = Field(
        default=None,
        description=("Steps with a loss or gradient norm that was not finite; see onNonFinite."),
    )
    step_seconds: float | None = Field(default=None, description="Duration of the newest step.")
    gradient_norm: float | None = Field(
        default=None, description="Norm of the gradient of the newest step, before clipping."
    )
    learning_rate: float | None = Field(
        default=None, description="Learning rate of the newest step."
    )
    loss_scale: float | None = Field(
        default=None, description="Loss scale of the newest step; 1 without scaling."
    )
    tokens_per_second: float | None = Field(
        default=None, description="Tokens per second in the newest step."
    )
    mfu: float | None = Field(
        default=None,
        description=(
            "Model FLOPs utilisation of the newest step: share of the peak arithmetic of "
            "the plan's GPUs."
        ),
    )
    memory_bytes: Bytes | None = Field(
        default=None, description="Peak memory of a rank of the plan so far, in bytes."
    )


class ReconfigurationStatus(Section):
    """The newest change of plan."""

    epoch: int | None = Field(default=None, description="Epoch after the change.")
    reason: str | None = Field(
        default=None, description="Reason for the change: join, drain or loss."
    )
    stall_seconds: float | None = Field(
        default=None,
        description=(
            "Seconds from the end of the last old step to the start of the first new one. "
            "The clock is that of a rank that trains before and after. After a loss, the "
            "silence before its detection counts."
        ),
    )
    bytes_moved: Bytes | None = Field(
        default=None, description="Bytes that went from rank to rank."
    )
    parts: Mapping[str, float] | None = Field(
        default=None,
        description=(
            "Parts of the stall in seconds: detect_s, agree_s, plan_s, prepare_s, "
            "drain_s, transfer_s, verify_s, vote_s, flip_s. After a loss, detect_s is the "
            "whole silence until the survivors halted."
        ),
    )


class CheckpointStatus(Section):
    """The newest whole checkpoint."""

    step: int | None = Field(default=None, description="Completed steps in it.")
    saved_at: datetime | None = Field(default=None, description="Time at which it was whole.")
    seconds: float | None = Field(
        default=None, description="Seconds from the boundary of its step until it was whole."
    )
    stall_seconds: float | None = Field(
        default=None, description="Longest that a rank stood still for it, in seconds."
    )
    bytes: Bytes | None = Field(default=None, description="Bytes that all ranks wrote for it.")
    held_out_loss: float | None = Field(
        default=None,
        description="Loss of the evaluation at its step; absent where there was none before it.",
    )
    best_step: int | None = Field(
        default=None,
        description=(
            "Completed steps in the checkpoint with the lowest held-out loss; absent without "
            "spec.checkpoint.keep.best."
        ),
    )
    best_held_out_loss: float | None = Field(default=None, description="Loss of that checkpoint.")
    restored_epoch: int | None = Field(
        default=None, description="Epoch that went on from a checkpoint last."
    )
    restored_step: int | None = Field(
        default=None, description="Completed steps in that checkpoint."
    )
    lost_steps: int | None = Field(
        default=None, description="Steps that were lost at all such restarts, as far as known."
    )


class ConditionStatus(Section):
    """One condition, as Kubernetes writes it."""

    type: Annotated[str, StringConstraints(max_length=316)] = Field(
        description="Name of the condition."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: Annotated[str, StringConstraints(max_length=1024)] = Field(
        description="Reason for the status, in one word."
    )
    message: Annotated[str, StringConstraints(max_length=32768)] = Field(
        description="Reason for the status, in a sentence."
    )
    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that this is about."
    )
    last_transition_time: datetime = Field(description="Time of the last change of the status.")


class JobStatus(Section):
    """Observed state of the job; only the operator writes it."""

    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that this is about."
    )
    phase: str | None = Field(
        default=None,
        description=(
            "Pending, Planning, Preparing, Switching, Running, Recovering, Saving, "
            "Suspending, Suspended, Complete, Failed, Invalid or Terminating. In Saving all "
            "steps are trained and the final weights are written. In Suspending the job trains "
            "until its state is saved. People read the phase; tools read the conditions."
        ),
    )
    message: str | None = Field(default=None, description="Reason for the phase, in a sentence.")
    epoch: int | None = Field(
        default=None,
        description=("Number of the epoch that trains; it grows with each adopted plan."),
    )
    active_gpus: int | None = Field(
        default=None, alias="activeGPUs", description="GPUs of the plan that trains."
    )
    usable_gpus: int | None = Field(
        default=None,
        alias="usableGPUs",
        description="GPUs that the job may use now beside other jobs.",
    )
    granted_gpus: int | None = Field(
        default=None, alias="grantedGPUs", description="GPUs that the job's pods hold."
    )
    nodes: tuple[str, ...] | None = Field(
        default=None, description="Nodes of the plan that trains; a long list is cut."
    )
    node_count: int | None = Field(
        default=None, description="Number of nodes of the plan that trains."
    )
    plan: PlanStatus | None = None
    type_speeds: Mapping[str, float] | None = Field(
        default=None,
        description=(
            "Measured speed of each GPU type that differs from its profile; 0.5 takes "
            "twice as long."
        ),
    )
    holders: HoldersStatus | None = None
    progress: ProgressStatus | None = None
    checkpoint: CheckpointStatus | None = None
    last_reconfiguration: ReconfigurationStatus | None = None
    conditions: tuple[ConditionStatus, ...] | None = Field(
        default=None,
        description=(
            "Conditions of the job: Ready, Accepted, Planned, Running, Reconfiguring, Degraded, "
            "NodesLeftOut, DeviceReady, DrainBlocked, CheckpointStale, Diverged, Complete, Failed, "
            "Stalled."
        ),
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
