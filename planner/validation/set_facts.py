"""What a measured set's rows do not state: hardware, links, precision, recomputation, model.

Invariant: every fact has a value after reading; a key that nobody knows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from planner.cluster.gpu_types import find_gpu
from planner.cluster.hardware import GpuHardware, Ring
from planner.errors import InvalidMeasurements
from planner.model.shape import ModelShape
from planner.strict_yaml import load_yaml

SHIPPED_FACTS = Path(__file__).parent / "sets.yaml"
NIC_LATENCY_S = 20e-6


@dataclass(frozen=True, slots=True)
class SetFacts:
    """Facts of one set; descriptive ones (framework, schedule, notes) are kept as they are.

    Attributes:
        model: `gpt` (all sizes in the rows), `gpt-neo-2.7b-like` or `opt-350m`.
        gpu_type: of all rows, or empty where the rows name types.
        gpu_types: that the rows name.
        gpus_per_node: 0 where the rows say it.
        inter_node_gbits_s: nominal rate of a node's port; 0: the GPU type's usual one.
        sequence_length: 0 where the rows say it.
        precision: fp32, fp16, bf16; `unknown` is priced as fp32.
        recompute: none, selective or full.
        vocabulary: rows of the embedding.
        leave_out: files that are not priced, with the reason.
        leave_out_memory: files whose memory is not compared, with the reason.
    """

    model: str
    gpu_type: str = ""
    gpu_types: tuple[str, ...] = ()
    gpus_per_node: int = 0
    intra_node_gbytes_s: float = 0.0
    inter_node_gbits_s: float = 0.0
    framework: str = ""
    schedule: str = "1f1b"
    gradient_buckets: bool = False
    sequence_length: int = 0
    precision: str = "fp16"
    recompute: str = "none"
    vocabulary: int = 50257
    published_mean_error_percent: Mapping[str, float] | None = None
    known_typo: str = ""
    leave_out: Mapping[str, str] = field(default_factory=dict)
    leave_out_memory: Mapping[str, str] = field(default_factory=dict)

    @property
    def priced_precision(self) -> str:
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

    def shape(self, hidden: int = 0, heads: int = 0, blocks: int = 0) -> ModelShape:
        """The model, with the sizes that the rows state.

        Raises:
            InvalidMeasurements: the facts name a model that nobody knows.
        """
        known: dict[str, dict[str, Any]] = {
            "gpt": {"hidden": hidden, "heads": heads, "scores": "fused", "dropout": True},
            "gpt-neo-2.7b-like": {"hidden": 2560, "heads": 32, "scores": "fp32"},
            "opt-350m": {"hidden": 1024, "heads": 16, "scores": "fused", "dropout": True},
        }
        if self.model not in known:
            raise InvalidMeasurements(
                f"the facts name the model {self.model!r}, which is unknown; known are "
                f"{', '.join(known)}"
            )
        row = known[self.model]
        return ModelShape(
            f"{self.model}-{row['hidden']}-{blocks}",
            layers=blocks,
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
    try:
        data = load_yaml(source.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InvalidMeasurements(f"facts file {source} cannot be read: {reason}") from None
    if not isinstance(data, Mapping):
        raise InvalidMeasurements(
            f"facts file {source} must hold a mapping from set to facts, found "
            f"{type(data).__name__}"
        )
    return {str(name): _facts(source, str(name), row) for name, row in data.items()}


def _facts(source: Path, name: str, row: object) -> SetFacts:
    if not isinstance(row, Mapping) or "model" not in row:
        raise InvalidMeasurements(
            f"facts file {source}, set {name}: expected a mapping with at least the key 'model'"
        )
    known = {fact.name: fact for fact in fields(SetFacts)}
    for key, value in row.items():
        if key not in known:
            raise InvalidMeasurements(
                f"facts file {source}, set {name}: the key {key!r} is unknown; known are "
                f"{', '.join(known)}"
            )
        default = known[str(key)].default
        number = isinstance(default, int | float) and not isinstance(default, bool)
        if number and not (isinstance(value, int | float) and value >= 0):
            raise InvalidMeasurements(
                f"facts file {source}, set {name}: {key} is {value!r}, expected a number of at "
                f"least 0"
            )
    ready = {str(key): value for key, value in row.items()}
    ready["gpu_types"] = tuple(ready.get("gpu_types", ()))
    for key in ("leave_out", "leave_out_memory"):
        ready[key] = dict(ready.get(key) or {})
    return SetFacts(**ready)
