"""Layers of Sailor's operator profiles, beside what the model says of the same layers.

Backward products count as twice the forward ones, as the data's README says, and rows that mark a
failure are left out with their layer.
Invariant: a layer's time is the sum of its operators, all-reduces of its TP group inside.
Source: eth-easl/sailor, sailor/Planner/baselines/Aceso/profiler (MIT).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.validation.readers import TYPES
from planner.cluster.hardware import GpuHardware
from planner.errors import InvalidMeasurements
from planner.model.shape import ModelShape
from planner.profiles.operators import (
    Shape,
    backward_seconds,
    forward_seconds,
    layer_work,
    reduce_seconds,
)

FAILED_US = 9e6  # an operator that did not run is marked by about 10 s
PRODUCTS = ("enc-attention-qkv", "enc-attention-dense", "enc-MLP-GEMM-1", "enc-MLP-GEMM-2")
PROFILED_MODELS = {"GPT-Neo-2.7": (2560, 32), "OPT-30": (7168, 56), "OPT-350": (1024, 16)}
LENGTH = 2048
OPERATOR_PROFILES = Path("sailor") / "aceso_profiler"  # below a folder of measurements


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledLayer:
    """One transformer layer of an operator profile."""

    gpu_type: str  # that ran it
    model: str  # which layer
    tp: int  # TP degree; its all-reduces are inside the times
    micro_batch: int  # b
    forward_s: float  # of all its operators
    backward_s: float  # the same, with products at twice their forward time; TP 1 only


def profiled_shape(model: str) -> ModelShape:
    """The layer shape of a profiled model."""
    hidden, heads = PROFILED_MODELS[model]
    return ModelShape(
        name=model,
        layers=1,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=4 * hidden,
        vocab=50304,
        gated=False,
        rotary=False,
        max_positions=LENGTH,
        bias=True,
        dropout=True,
        scores="fused",
    )


def read_profiled_layers(folder: Path) -> Iterator[ProfiledLayer]:
    """Every layer of `sailor/aceso_profiler` that ran."""
    for path in sorted(folder.glob("*/fp16/*_algo0.csv")):
        match = re.fullmatch(r"(.+)_mbs(\d+)_tp(\d+)_algo0", path.stem)
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = [row for row in csv.DictReader(file) if row["op_name"].startswith("enc-")]
            forward = {row["op_name"]: float(row["forward-compute"]) for row in rows}
            backward = {row["op_name"]: float(row["backward-compute"]) for row in rows}
            products = sum(forward[name] for name in PRODUCTS)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidMeasurements(f"{path} is not an operator profile: {error}") from None
        if match is None or path.parents[1].name not in TYPES or match[1] not in PROFILED_MODELS:
            raise InvalidMeasurements(
                f"{path} is of a GPU type or a model that nobody knows; known are "
                f"{', '.join(TYPES)} and {', '.join(PROFILED_MODELS)}"
            )
        if max(*forward.values(), *backward.values()) > FAILED_US:
            continue
        others = sum(us for name, us in backward.items() if name not in PRODUCTS)
        yield ProfiledLayer(
            gpu_type=TYPES[path.parents[1].name],
            model=match[1],
            tp=int(match[3]),
            micro_batch=int(match[2]),
            forward_s=sum(forward.values()) / 1e6,
            backward_s=(others + 2 * products) / 1e6,
        )


def layer_seconds(layer: ProfiledLayer, gpu: GpuHardware) -> tuple[float, float]:
    """(forward, backward) of the same layer by the model, all-reduces inside."""
    shape = Shape(tp=layer.tp, micro_batch=layer.micro_batch, sequence_length=LENGTH, value_bytes=2)
    work = layer_work(profiled_shape(layer.model), "block", shape)
    reduced_s = reduce_seconds(work.reduced_bytes, gpu, layer.tp)
    return forward_seconds(work, gpu) + reduced_s, backward_seconds(work, gpu) + reduced_s
