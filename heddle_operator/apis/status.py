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

    digest: str | None = Field(default=None, description="Digest that names it.")
    summary: str | None = Field(
        default=None,
        description=(
            "Its templates: replicas x [GPU type, TP, layers of each stage], micro-batch."
        ),
    )
    reason: str | None = Field(
        default=None, description="Why it was adopted: start, join, drain or loss."
    )
    cause: str | None = Field(
        default=None,
        description=(
            "What forced the job off the plan before, in one word such as NodeLeaving or MaxGPUs."
        ),
    )
    templates: int | None = Field(default=None, description="Number of its templates.")
    pipelines: int | None = Field(default=None, description="Number of its pipelines.")
    predicted_samples_per_second: float | None = Field(
        default=None, description="Throughput that the planner's cost model predicts."
    )
    predicted_memory_bytes: Bytes | None = Field(
        default=None,
        description=(
            "Most bytes that a GPU of the plan is to hold, by the planner; a process holds Python "
            "and torch besides."
        ),
    )


class HoldersStatus(Section):
    """How safe the state is."""

    min_nodes: int | None = Field(
        default=None, description="Least number of nodes that hold a piece of the state."
    )
    single_pieces: int | None = Field(
        default=None, description="Number of pieces that only one node holds."
    )


class ProgressStatus(Section):
    """How far the training is."""

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
        default=None, description="Completed steps of the model that was evaluated then."
    )
    skipped_steps: int | None = Field(
        default=None,
        description=(
            "Steps whose loss or gradient norm was not finite; onNonFinite says what became of "
            "them."
        ),
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
        default=None, description="Tokens of a second in the newest step."
    )
    mfu: float | None = Field(
        default=None,
        description=(
            "Share of the peak arithmetic of the plan's GPUs that the model used in the newest "
            "step."
        ),
    )
    memory_bytes: Bytes | None = Field(
        default=None, description="The most that a rank of the plan has held so far."
    )


class ReconfigurationStatus(Section):
    """The newest change of plan."""

    epoch: int | None = Field(default=None, description="Epoch that the change led to.")
    reason: str | None = Field(default=None, description="join, drain or loss.")
    stall_seconds: float | None = Field(
        default=None,
        description=(
            "From the end of the last old step to the start of the first new one, by the clock of "
            "a rank that trains before and after; of a loss the silence before it was noticed "
            "counts."
        ),
    )
    bytes_moved: Bytes | None = Field(
        default=None, description="Bytes that went from rank to rank."
    )
    parts: Mapping[str, float] | None = Field(
        default=None,
        description=(
            "The stall by part, in seconds: detect_s, agree_s, plan_s, prepare_s, drain_s, "
            "transfer_s, verify_s, vote_s, flip_s. Of a loss detect_s is all of the silence until "
            "the survivors halted."
        ),
    )


class ConditionStatus(Section):
    """One condition, as Kubernetes writes it."""

    type: Annotated[str, StringConstraints(max_length=316)] = Field(
        description="Name of the condition."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Annotated[str, StringConstraints(max_length=1024)] = Field(
        description="Why, in one word."
    )
    message: Annotated[str, StringConstraints(max_length=32768)] = Field(
        description="Why, in a sentence."
    )
    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that this is about."
    )
    last_transition_time: datetime = Field(description="When the status last changed.")


class JobStatus(Section):
    """What the operator sees; only the operator writes it."""

    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that this is about."
    )
    phase: str | None = Field(
        default=None,
        description=(
            "Pending, Planning, Preparing, Switching, Running, Recovering, Saving (all steps are "
            "trained, the final weights are written), Complete, Failed or Invalid; for people "
            "(tools read the conditions)."
        ),
    )
    message: str | None = Field(default=None, description="Why the job is in this phase.")
    epoch: int | None = Field(
        default=None,
        description=("Number of the epoch that trains; it grows with each adopted plan."),
    )
    active_gpus: int | None = Field(
        default=None, alias="activeGPUs", description="GPUs of that plan."
    )
    usable_gpus: int | None = Field(
        default=None,
        alias="usableGPUs",
        description="GPUs that the job may use now beside other jobs.",
    )
    granted_gpus: int | None = Field(
        default=None, alias="grantedGPUs", description="GPUs that its pods hold."
    )
    nodes: tuple[str, ...] | None = Field(
        default=None, description="Nodes of that plan; of many the first ones."
    )
    node_count: int | None = Field(default=None, description="Number of nodes of that plan.")
    plan: PlanStatus | None = None
    type_speeds: Mapping[str, float] | None = Field(
        default=None,
        description=(
            "Speed by GPU type that differs from its profile, as the ranks measured: 0.5 takes "
            "twice as long."
        ),
    )
    holders: HoldersStatus | None = None
    progress: ProgressStatus | None = None
    last_reconfiguration: ReconfigurationStatus | None = None
    conditions: tuple[ConditionStatus, ...] | None = Field(
        default=None,
        description=(
            "Accepted, Planned, Running, Reconfiguring, Degraded, NodesLeftOut, DrainBlocked, "
            "Diverged, Complete, Failed."
        ),
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
