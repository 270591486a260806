"""The training task: a model, and the settings that a plan's cost and memory depend on.

Legend: L blocks; layer index 0 is the embedding, 1..L the blocks, L + 1 the head.
Source: Heddle, section 5.1 (Workload).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from planner.errors import InvalidWorkload
from planner.model.catalogue import find_model
from planner.model.shape import ModelShape, StageRecompute
from planner.wording import kind_of

Precision = Literal["fp32", "fp16", "bf16"]
# By whose rules memory is counted: what Heddle's worker allocates, or the paper's (DeepSpeed's own
# optimizers, fp16 gradients), which its figures, references and shipped policies stand on.
MemoryRule = Literal["worker", "paper"]
# What carries messages between GPUs: NCCL, or copies through memory of the hosts.
GpuWire = Literal["nccl", "staged"]
Recompute = Literal["none", "selective", "full", "auto"]
# Of ZeRO: never, always, or where no plan without it fits in memory.
Zero = Literal["Off", "Stage1", "Auto"]
RECOMPUTATIONS: tuple[Recompute, ...] = get_args(Recompute)
MOST_SAMPLES = 2**20  # of a step; beyond these somebody has mistyped, and a search takes for ever
MOST_TOKENS = 2**24  # of a sample
MOST_COUNT = 10**9  # of steps, seconds, GPUs ... of a job: a billion steps take decades
MOST_SEED = 2**53  # JSON keeps whole numbers exactly up to it, whoever reads them
STAGE_RECOMPUTATIONS: tuple[StageRecompute, ...] = get_args(StageRecompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model with the training settings that a plan depends on.

    Attributes:
        model: the shape.
        global_batch: B, samples a step over all replicas.
        sequence_length: tokens a sample.
        precision: of weights and activations.
        zero: ZeRO stage inside a template's replica group.
        recompute: what stages compute again in their backward pass; auto: the planner chooses it
            for each stage.  A plan always says it by stage, and prices read it from there.
        sequence_parallel: Megatron's: what TP leaves whole is cut along the sequence.
        memory: by whose rules it is counted; see `planner.cost.memory.RULES`.
        wire: of the ranks; links and sums of a staged one are modelled, see
            `planner.profiles.staged`.
    """

    model: ModelShape
    global_batch: int
    sequence_length: int
    precision: Precision = "fp32"
    zero: int = 0
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    memory: MemoryRule = "worker"
    wire: GpuWire = "nccl"

    def __post_init__(self) -> None:
        if self.global_batch < 1 or self.sequence_length < 1:
            raise InvalidWorkload(
                f"global batch {self.global_batch} and sequence length {self.sequence_length} "
                f"must both be at least 1",
                code="OutOfRange",
            )
        if self.global_batch > MOST_SAMPLES or self.sequence_length > MOST_TOKENS:
            raise InvalidWorkload(
                f"global batch {self.global_batch} and sequence length {self.sequence_length} must "
                f"be at most {MOST_SAMPLES:,} and {MOST_TOKENS:,}",
                code="OutOfRange",
            )
        if self.precision not in get_args(Precision):
            raise InvalidWorkload(
                f"precision {self.precision!r} is unknown; use one of "
                f"{', '.join(get_args(Precision))}",
                field="precision",
                code="Unknown",
            )
        if self.memory not in get_args(MemoryRule):
            raise InvalidWorkload(
                f"memory rule {self.memory!r} is unknown; use one of "
                f"{', '.join(get_args(MemoryRule))}",
                field="memory",
                code="Unknown",
            )
        if self.wire not in get_args(GpuWire):
            raise InvalidWorkload(
                f"wire {self.wire!r} is unknown; use one of {', '.join(get_args(GpuWire))}",
                field="wire",
                code="Unknown",
            )
        if self.recompute not in RECOMPUTATIONS:
            raise InvalidWorkload(
                f"recomputation {self.recompute!r} is unknown; use one of "
                f"{', '.join(RECOMPUTATIONS)}",
                field="recompute",
                code="Unknown",
            )
        if self.zero not in (0, 1):
            raise InvalidWorkload(
                f"ZeRO stage {self.zero!r} is not supported; use 0 or 1",
                field="zero",
                code="Unsupported",
            )

    def to_json(self) -> dict[str, Any]:
        """The workload as plain data, for files and answers; the usual wire is not stated."""
        data = asdict(self)
        if self.wire == "nccl":
            del data["wire"]
        return data

    @staticmethod
    def from_json(data: object) -> Workload:
        """Read what `to_json` wrote; the model may also be a name or the path of a config.json.

        Raises:
            InvalidWorkload: a key is missing, unknown or of the wrong type.
        """
        if not isinstance(data, Mapping):
            raise InvalidWorkload(
                f"a workload is a JSON object, found {kind_of(data)}", code="Malformed"
            )
        unknown = sorted(set(data) - set(Workload.__slots__))
        if unknown:
            raise InvalidWorkload(
                f"the workload has the unknown key {unknown[0]!r}; allowed are "
                f"{', '.join(Workload.__slots__)}",
                field=unknown[0],
                code="Unknown",
            )
        for key in ("global_batch", "sequence_length", "zero"):
            value = data.get(key, 0 if key == "zero" else None)
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidWorkload(
                    f"the workload's {key} is {value!r}; it must be a whole number",
                    field=key,
                    code="Malformed",
                )
        if not isinstance(data.get("sequence_parallel", False), bool):
            raise InvalidWorkload(
                f"the workload's sequence_parallel is {data['sequence_parallel']!r}; it must be "
                f"true or false",
                field="sequence_parallel",
                code="Malformed",
            )
        stated = data.get("model")
        if isinstance(stated, Mapping):
            model = ModelShape.from_json(stated)
        elif isinstance(stated, str):
            model = find_model(stated)
        else:
            raise InvalidWorkload(
                f"the workload's model is {stated!r}; it must be a name or the shape of a model",
                field="model",
                code="Malformed",
            )
        return Workload(**{**data, "model": model})


DEMO_MODELS = ("tiny-llama", "tiny-mixtral", "tiny-deepseek")


def usual_workload(model: ModelShape) -> Workload:
    """How a model is trained unless somebody says otherwise: as in the paper's evaluation.

    Memory too is counted by the paper's rule.  The demo's models are trained as in the demo.
    """
    if model.name in DEMO_MODELS:
        return Workload(
            model=model,
            global_batch=20,
            sequence_length=128,
            precision="fp32",
            recompute=model.recompute,
            memory="paper",
        )
    return Workload(
        model=model,
        global_batch=2048,
        sequence_length=2048,
        precision="fp16",
        recompute=model.recompute,
        memory="paper",
    )
