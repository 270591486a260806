"""`spec` of a HeddleJob: its sections, with every bound, default and description.

The resource's schema and reference are generated from these classes; see `resources/generate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from heddle_operator.apis.checkpoint import Checkpoint
from heddle_operator.apis.data import Data
from heddle_operator.apis.model import Model
from heddle_operator.apis.references import ConfigMapName
from planner.model.workload import Recompute, Zero
from worker.log_lines import Format
from worker.training_settings import (
    Count,
    CountFrom0,
    NotNegative,
    Section,
    Training,
    Verify,
)

# Two planner processes serve all jobs of a cluster, so others wait for a search as long as it
# takes; a plan of 4,096 GPUs is found within 0.05 s.
MOST_BUDGET_S = 60.0
MOST_TYPES = 100
Mode = Literal["Auto", "Recommend", "Manual"]
NULLABLE: JsonDict = {
    "nullable": True
}  # in the schema: null may be written, and means what absence does


STAGES = {0: "Off", 1: "Stage1"}  # of ZeRO


class ZeroStage:
    """Marks the words of ZeRO: the stages 0 and 1 are read as Off and Stage1.

    YAML reads Off without quotes as false, so that is the same word.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """See pydantic."""

        def word(found: object) -> object:
            if isinstance(found, int) and found is not True:
                return STAGES.get(found, found)
            return found

        return core_schema.no_info_before_validator_function(word, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The words, and the stages after them."""
        found = handler(schema)
        found.pop("type")
        return found | {
            "enum": [*found["enum"], *STAGES, False],
            "x-kubernetes-preserve-unknown-fields": True,
        }


ZeroWord = Annotated[Zero, ZeroStage()]
Objective = Literal["Throughput", "Cost"]
TypeName = Annotated[str, StringConstraints(max_length=100)]


def _is_folder(path: str) -> str:
    scheme, is_url, _ = path.partition("://")
    if is_url:
        raise ValueError(
            f"final weights cannot be kept at {scheme}://; give a folder on a volume of the pod "
            "template"
        )
    return path


class Output(Section):
    """Destination of the final weights."""

    path: Annotated[
        str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_is_folder)
    ] = Field(description="Folder on a volume of the pod template; the safetensors files go there.")


class PlannerSpec(Section):
    """Search for plans."""

    budget_seconds: Annotated[float, Field(gt=0, le=MOST_BUDGET_S)] = Field(
        default=0.5, description="Seconds that a search may take."
    )
    objective: Objective = Field(
        default="Throughput",
        description=(
            "Measure of the best plan. Throughput: most samples per second. Cost: least money per "
            "sample, by the prices of the operator's settings."
        ),
    )
    recompute: Recompute = Field(
        default="none",
        description=(
            "Activations that the backward pass recomputes instead of storing. selective: "
            "the attention core; full: whole blocks; auto: the best choice for each "
            "stage."
        ),
    )
    zero: ZeroWord = Field(
        default="Off",
        description=(
            "Master weights and moments of the optimizer. Off: each holder of a weight has them. "
            "Stage1: the replicas of a template share them (ZeRO stage 1). Auto: as Stage1 where "
            "no plan without it fits in memory."
        ),
    )


class GpuTypes(Section):
    """GPU types that the job may use."""

    allow: Annotated[tuple[TypeName, ...], Field(max_length=MOST_TYPES)] = Field(
        default=(), description="Names of profiled types; an empty list allows all."
    )


class Elastic(Section):
    """Reaction of the job to changes of the cluster."""

    mode: Mode = Field(
        default="Auto",
        description=(
            "Auto moves where it pays. Recommend reports a better plan and stays. Manual "
            "moves to the plan of planRef only. In every mode the job leaves GPUs that "
            "are lost or about to be lost."
        ),
    )
    min_gpus: Count = Field(
        default=1, alias="minGPUs", description="Least number of GPUs; with fewer the job waits."
    )
    max_gpus: Count | None = Field(
        default=None, alias="maxGPUs", description="Largest number of GPUs that the job uses."
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
            "Seconds between two voluntary moves. Idle GPUs are released after the same time."
        ),
    )
    peer_timeout_seconds: Annotated[float, Field(ge=2, le=300)] = Field(
        default=10.0,
        description=(
            "Seconds after which a pod that does not answer, or a rank without "
            "heartbeats, is lost. The job goes on without it. A slow rank sends "
            "heartbeats, and the job waits for it."
        ),
    )
    verify: Verify = Field(
        default="Moved",
        description=(
            "Check at a change of plan. Moved: all data sent and received. Full: every "
            "copy of the whole state; its time grows with the state."
        ),
    )
    leave_on_cordon: bool = Field(
        default=False,
        description=(
            "Treat a cordon as a notice: the job leaves the node. If false, the job "
            "starts no new pods there, and leaves when a drain evicts its pods."
        ),
    )
    yield_to_autoscaler: bool = Field(
        default=False,
        description=(
            "Allow the eviction of one pod at a time while a plan without its node is "
            "known. Karpenter or a descheduler asks for the node by an eviction. The job "
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
    """The worker pods: their template, their device and the format of their logs."""

    template: Mapping[str, Any] = Field(
        default={},
        description=(
            "Pod template that is merged into the worker pods. Its container worker is "
            "merged into Heddle's container (image, command, env, volumeMounts, "
            "resources). Its args follow the agent's. docs/security.md lists the allowed "
            "fields."
        ),
    )
    device: Literal["Auto", "CPU", "CUDA"] = Field(
        default="Auto",
        description=(
            "Device of the ranks. Auto takes the GPUs of a pod where there is a driver, "
            "else its processor."
        ),
    )
    log_format: Format | None = Field(
        default=None,
        description="Format of the workers' log lines; by default the operator's.",
        json_schema_extra=NULLABLE,
    )


class JobSpec(Section):
    """Desired state of the job; the user writes it."""

    model: Model
    data: Data
    training: Training
    steps: Count = Field(description="Optimizer steps after which the job is complete.")
    output: Output | None = None
    checkpoint: Checkpoint | None = None
    planner: PlannerSpec = PlannerSpec()
    elastic: Elastic = Elastic()
    plan_ref: ConfigMapName | None = Field(
        default=None,
        description=(
            "Plan of mode Manual: name of a ConfigMap in the job's namespace, with the "
            "plan under the key plan.json."
        ),
        json_schema_extra=NULLABLE,
    )
    worker: WorkerTemplate = WorkerTemplate()
    suspend: bool = Field(
        default=False,
        description=(
            "Suspend the job: it saves a checkpoint, then gives its GPUs back. If false, it "
            "goes on from there. It needs spec.checkpoint."
        ),
    )
    deadline_seconds: Count | None = Field(
        default=None,
        description=(
            "Seconds from the creation of the job to its deadline, without those in which it "
            "is suspended. A job that is not complete by then fails (DeadlineExceeded). "
            "Without it, the job waits and retries for ever."
        ),
        json_schema_extra=NULLABLE,
    )
    backoff_limit: CountFrom0 | None = Field(
        default=None,
        description=(
            "Largest number of failed attempts in a row to start or to recover. One more "
            "fails the job (BackoffLimitExceeded). A job that trains never fails by it. "
            "Without it, the job retries for ever."
        ),
        json_schema_extra=NULLABLE,
    )
    ttl_seconds_after_finished: CountFrom0 | None = Field(
        default=None,
        description=(
            "Seconds from the end of the job to its deletion, with all objects that it "
            "owns. Without it, the job stays. Its files under output.path always stay."
        ),
        json_schema_extra=NULLABLE,
    )

    @model_validator(mode="after")
    def _can_suspend(self) -> JobSpec:
        if self.suspend and self.checkpoint is None:
            raise ValueError("suspend needs spec.checkpoint, where the state is kept; give a path")
        return self

    @model_validator(mode="after")
    def _can_keep_best(self) -> JobSpec:
        keeps_best = self.checkpoint is not None and self.checkpoint.keep.best
        if keeps_best and self.training.evaluate_every is None:
            raise ValueError(
                "checkpoint.keep.best needs a held-out loss; give spec.training.evaluateEvery, or "
                "leave best out"
            )
        return self
