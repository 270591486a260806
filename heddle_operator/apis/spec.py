"""`spec` of a HeddleJob: its sections, with every bound, default and description.

The resource's schema and reference are generated from these classes; see `resources/generate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator
from pydantic.config import JsonDict

from heddle_operator.apis.data import Data
from heddle_operator.apis.model import Model
from heddle_operator.apis.references import ConfigMapName
from planner.model.workload import Recompute
from worker.log_lines import Format
from worker.training_settings import Count, NotNegative, OldSpelling, Section, Training, Verify

# Two planner processes serve all jobs of a cluster, so others wait for a search as long as it
# takes; a plan of 4,096 GPUs is found within 0.05 s.
MOST_BUDGET_S = 60.0
MOST_TYPES = 100
Mode = Literal["Auto", "Recommend", "Manual"]
NULLABLE: JsonDict = {
    "nullable": True
}  # in the schema: null may be written, and means what absence does
Objective = Annotated[Literal["Throughput"], OldSpelling()]
TypeName = Annotated[str, StringConstraints(max_length=100)]


class Output(Section):
    """Where the final weights go."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=1000)] = Field(
        description="Folder on a volume of the pod template; the safetensors files go there."
    )


class PlannerSpec(Section):
    """How plans are searched."""

    method: Literal["auto"] | None = Field(
        default=None, description="Deprecated: it does nothing; leave it out."
    )
    budget_seconds: Annotated[float, Field(gt=0, le=MOST_BUDGET_S)] = Field(
        default=0.5, description="Seconds that a search may take."
    )
    objective: Objective = Field(
        default="Throughput", description="Measure by which the best plan is chosen."
    )
    recompute: Recompute = Field(
        default="none",
        description=(
            "What the backward pass computes again instead of keeping it. selective: the attention "
            "core; full: whole blocks; auto: what is best for each stage."
        ),
    )
    zero: Literal[0] = Field(default=0, description="Stage of ZeRO; only 0 is supported yet.")


class GpuTypes(Section):
    """Which GPU types the job may use."""

    allow: Annotated[tuple[TypeName, ...], Field(max_length=MOST_TYPES)] = Field(
        default=(), description="Names of profiled types; an empty list allows all."
    )


class Elastic(Section):
    """How the job follows the cluster."""

    mode: Mode = Field(
        default="Auto",
        description=(
            "Auto moves where it pays. Recommend says what it would do, and does not move. Manual "
            "moves to the plan of planRef only. In every mode the job leaves GPUs that are lost or "
            "about to be."
        ),
    )
    min_gpus: Count = Field(
        default=1, alias="minGPUs", description="With fewer GPUs the job waits."
    )
    max_gpus: Count | None = Field(
        default=None, alias="maxGPUs", description="The job never uses more GPUs than this."
    )
    gpu_types: GpuTypes = GpuTypes()
    min_holders: Count = Field(
        default=1,
        description=(
            "Number of nodes that hold each piece of the state, where the cluster allows it."
        ),
    )
    min_gain_percent: NotNegative = Field(
        default=2.0, description="Least gain of throughput for which the job moves."
    )
    join_debounce_seconds: NotNegative = Field(
        default=5.0, description="Seconds that a new node must be stable before it is used."
    )
    cooldown_seconds: NotNegative = Field(
        default=30.0,
        description=(
            "Seconds between two moves that nothing forces; idle GPUs are released after as many."
        ),
    )
    peer_timeout_seconds: Annotated[float, Field(ge=2, le=300)] = Field(
        default=10.0,
        description=(
            "A pod that does not answer, or a rank that sends no heartbeat, for so long is lost, "
            "and the job goes on without it. A slow one sends heartbeats, and the job waits for it."
        ),
    )
    verify: Verify = Field(
        default="Moved",
        description=(
            "Check at a change of plan. Moved: all that was sent and received; Full: every copy of "
            "all of the state, whose time grows with the state."
        ),
    )
    leave_on_cordon: bool = Field(
        default=False,
        description=(
            "Whether a cordon is a notice: the job leaves the node. Otherwise it only starts no "
            "new pods there, and leaves when a drain evicts its pods."
        ),
    )
    yield_to_autoscaler: bool = Field(
        default=False,
        description=(
            "Whether a pod may be evicted, one at a time, while a plan without its node is known. "
            "Whoever wants the node back (Karpenter, a descheduler) asks by an eviction. The job "
            "keeps at least minGPUs."
        ),
    )

    @model_validator(mode="after")
    def _limits(self) -> Elastic:
        if self.max_gpus is not None and self.min_gpus > self.max_gpus:
            raise ValueError(
                f"minGPUs {self.min_gpus} is above maxGPUs {self.max_gpus}; "
                "lower one or raise the other"
            )
        return self


class WorkerTemplate(Section):
    """The worker pods: a template that is merged into them, and how they log."""

    template: Mapping[str, Any] = Field(
        default={},
        description=(
            "A pod template that is merged into the worker pods. The container worker is Heddle's "
            "own (image, command, env, volumeMounts, resources); its args are added to the "
            "agent's. docs/security.md lists the fields that it may hold."
        ),
    )
    log_format: Format | None = Field(
        default=None,
        description="Form of each line of the workers' logs; by default that of the operator.",
        json_schema_extra=NULLABLE,
    )


class JobSpec(Section):
    """What the user wants."""

    model: Model
    data: Data
    training: Training
    steps: Count = Field(description="Optimizer steps after which the job is complete.")
    output: Output | None = None
    planner: PlannerSpec = PlannerSpec()
    elastic: Elastic = Elastic()
    plan_ref: ConfigMapName | None = Field(
        default=None,
        description=(
            "Mode Manual: name of a ConfigMap of the same namespace, with a plan under the key "
            "plan.json."
        ),
        json_schema_extra=NULLABLE,
    )
    worker: WorkerTemplate = WorkerTemplate()
    suspend: Literal[False] = Field(
        default=False, description="Suspending is not supported yet; delete the job instead."
    )
    deadline_seconds: Count | None = Field(
        default=None,
        description=(
            "Seconds after the creation of the job at which it fails (DeadlineExceeded) if it is "
            "not complete. Without it, the job waits and tries for ever."
        ),
        json_schema_extra=NULLABLE,
    )
    backoff_limit: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description=(
            "Number of attempts to start or to recover that may fail in a row; at one more the job "
            "fails (BackoffLimitExceeded). A job that trains never fails for it. Without it, the "
            "job tries for ever."
        ),
        json_schema_extra=NULLABLE,
    )
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description=(
            "Seconds after the end of the job at which it is deleted, with all that it owns. "
            "Without it, the job stays. Its files under output.path always stay."
        ),
        json_schema_extra=NULLABLE,
    )
