"""Facts that rows of a measured set lack: hardware, links, precision, recomputation, model.

Invariant: every fact has a value after reading; a key that nobody knows is refused.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from planner.cluster.gpu_types import find_gpu
from planner.cluster.hardware import GpuHardware, Ring
from planner.errors import InvalidMeasurements
from planner.model.shape import ModelShape, StageRecompute
from planner.model.workload import Precision
from planner.strict_yaml import read_yaml

SHIPPED_FACTS = Path(__file__).parent / "sets.yaml"
NIC_LATENCY_S = 20e-6
SIZES: dict[str, dict[str, Any]] = {  # of a model, as far as the rows do not say them
    "gpt": {"scores": "fused", "dropout": True},
    "gpt-neo-2.7b-like": {"hidden": 2560, "heads": 32, "scores": "fp32"},
    "opt-350m": {"hidden": 1024, "heads": 16, "scores": "fused", "dropout": True},
}
AtLeast0 = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SetFacts(BaseModel):
    """Facts of one set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # `gpt` (all sizes in the rows), `gpt-neo-2.7b-like` or `opt-350m`
    model: Literal["gpt", "gpt-neo-2.7b-like", "opt-350m"]
    gpu_type: str = ""  # of all rows, or empty where the rows name types
    gpu_types: tuple[str, ...] = ()  # that the rows name
    gpus_per_node: Annotated[int, Field(ge=0)] = 0  # 0 where the rows say it
    inter_node_gbits_s: AtLeast0 = 0.0  # nominal rate of a node's port; 0: the GPU type's usual one
    sequence_length: Annotated[int, Field(ge=0)] = 0  # 0 where the rows say it
    precision: Literal["fp32", "fp16", "bf16", "unknown"] = "fp16"  # `unknown` is priced as fp32
    recompute: StageRecompute = "none"  # what every stage computes again
    vocabulary: Annotated[int, Field(ge=1)] = 50257  # rows of the embedding
    leave_out: dict[str, str] = {}  # files that are not priced, with the reason
    leave_out_memory: dict[str, str] = {}  # files whose memory is not compared, with the reason

    @property
    def priced_precision(self) -> Precision:
        """The precision that plans are priced with."""
        return "fp32" if self.precision == "unknown" else self.precision

    def gpu(self, name: str, hardware: Mapping[str, GpuHardware]) -> GpuHardware:
        """The hardware of a type as this set had it."""
        gpu = hardware[name] if name in hardware else find_gpu(name)
        if self.gpus_per_node:
            gpu = replace(gpu, node_gpus=self.gpus_per_node)
        if self.inter_node_gbits_s:
            rate = self.inter_node_gbits_s * 1e9 / 8 * gpu.nic_efficiency
            gpu = replace(gpu, node_nic=Ring(NIC_LATENCY_S, rate))
        return gpu

    def shape(self, **stated: int) -> ModelShape:
        """The model, with the sizes that the rows state: `layers`, and of `gpt` all others."""
        row = {**stated, **SIZES[self.model]}
        return ModelShape(
            name=f"{self.model}-{row['hidden']}-{row['layers']}",
            kv_heads=row["heads"],
            ffn=4 * row["hidden"],
            vocab=self.vocabulary,
            gated=False,
            rotary=False,
            max_positions=2048,
            tied_head=True,
            bias=True,
            **row,
        )


def read_facts(path: Path | None = None) -> dict[str, SetFacts]:
    """Read a facts file; the one that comes with Heddle if not given.

    Raises:
        InvalidMeasurements: it cannot be read, or a key or a value is wrong.
    """
    source = SHIPPED_FACTS if path is None else path
    data = read_yaml(source, "facts file", InvalidMeasurements)
    try:
        return TypeAdapter(dict[str, SetFacts]).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the whole"
    raise InvalidMeasurements(
        f"facts file {source}: {where} is {reprlib.repr(first['input'])}, {first['msg'].lower()}; "
        f"it maps sets to {', '.join(SetFacts.model_fields)}, and each needs a model"
    )
