"""Modelled profiles: the roofline of every operator, summed layer by layer.

Anyone can write the files of `profiles/` again bit for bit (`python -m
planner.profiles.generator`), and the same functions make entries off the grid for pricing and
validation.
Invariant: a pure function of model, hardware constants (`planner.cluster.gpu_types`) and settings.
Source: roofline per operator; constants and their sources are in `planner.cluster.gpu_types`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner.cluster.gpu_types import HARDWARE, find_gpu
from planner.cluster.hardware import GpuHardware, Ring
from planner.model.catalogue import MODELS
from planner.model.shape import Kind, ModelShape
from planner.model.workload import DEMO_MODELS, Workload
from planner.profiles.entries import GpuType, LayerCost, LayerKey, LinkCost, TileKey, as_row
from planner.profiles.operators import (
    VALUE_BYTES,
    Shape,
    attention_seconds,
    backward_seconds,
    forward_seconds,
    layer_work,
    reduce_seconds,
)
from planner.profiles.profile import LINKS_FILE, PROFILES, Profile, load_profile
from planner.profiles.staged import staged

TP_DEGREES = (1, 2, 4, 8)
MICRO_BATCHES = (1, 2, 4, 8, 16)
# The files that come with Heddle: sequence length and precision of the paper's evaluation.
SEQUENCE_LENGTH = 2048
PRECISION = "fp16"
# What no plan may use of a GPU until it is measured: a share, and context with workspaces.
RESERVE_SHARE = 0.06
RESERVE_BYTES = 1_500_000_000
# Adam in mixed precision reads and writes master, both moments, gradient and weight.
OPTIMIZER_BYTES = 30


def layer_cost(model: ModelShape, kind: Kind, gpu: GpuHardware, shape: Shape) -> LayerCost:
    """One layer on one rank of a TP group, rounded to the nanosecond."""
    work = layer_work(model, kind, shape)
    one_way_s = reduce_seconds(work.reduced_bytes, gpu, shape.tp)
    selective = kind in ("block", "moe_block")
    return LayerCost(
        forward_s=round(forward_seconds(work, gpu), 9),
        backward_s=round(backward_seconds(work, gpu), 9),
        tp_communication_s=round(2.0 * one_way_s, 9),
        activation_bytes=round(work.kept_bytes + work.core_kept_bytes),
        attention_s=round(attention_seconds(work, gpu), 9) if selective else 0.0,
        attention_bytes=round(work.core_kept_bytes) if selective else 0,
        input_bytes=round(work.input_bytes),
    )


class GeneratedLayers(Mapping[LayerKey, LayerCost]):
    """Every entry that the generator can make; iteration goes over the grid only."""

    def __init__(
        self, model: ModelShape, gpus: Sequence[GpuHardware], settings: tuple[int, str, bool]
    ) -> None:
        """Prepare for one model; settings are sequence length, precision, sequence parallelism."""
        self._model = model
        self._gpus = {gpu.name: gpu.at(settings[1]) for gpu in gpus}
        self._settings = settings
        self._known: dict[tuple[object, ...], LayerCost] = {}

    def __getitem__(self, key: LayerKey) -> LayerCost:
        """Make the entry of that key; KeyError if the model has no such layer or cannot be cut."""
        kind, gpu_type, tp, micro_batch = key
        return self.make(kind, gpu_type, tp, micro_batch, 1, tp)

    def make(
        self, kind: Kind, gpu_type: str, tp: int, micro_batch: int, ep: int, etp: int
    ) -> LayerCost:
        """Make the entry of any key; KeyError as above."""
        key = (kind, gpu_type, tp, micro_batch, ep, etp)
        if key not in self._known:
            held = (*self._model.block_kinds, "embedding", "head")
            if gpu_type not in self._gpus or kind not in held or not self._model.allows_tp(tp):
                raise KeyError(key)
            length, precision, parallel = self._settings
            shape = Shape(
                tp=tp,
                micro_batch=micro_batch,
                sequence_length=length,
                value_bytes=VALUE_BYTES[precision],
                sequence_parallel=parallel,
                ep=ep,
                etp=etp,
            )
            self._known[key] = layer_cost(self._model, kind, self._gpus[gpu_type], shape)
        return self._known[key]

    def __iter__(self) -> Iterator[LayerKey]:
        """The keys of the grid."""
        kinds: tuple[Kind, ...] = ("embedding", *self._model.block_kinds, "head")
        return (
            (kind, name, tp, micro_batch)
            for name in self._gpus
            for kind in kinds
            for tp in TP_DEGREES
            if self._model.allows_tp(tp)
            for micro_batch in MICRO_BATCHES
        )

    def __len__(self) -> int:
        """How many keys the grid has."""
        return sum(1 for _ in self)


class GeneratedTiles(Mapping[TileKey, LayerCost]):
    """Every tiling of a MoE block that cuts its experts evenly; iteration goes over none."""

    def __init__(self, model: ModelShape, layers: GeneratedLayers) -> None:
        """Make entries as `layers` does."""
        self._model, self._layers = model, layers

    def __getitem__(self, key: TileKey) -> LayerCost:
        """Make the entry of that key; KeyError if the experts cannot be cut so."""
        gpu_type, tp, micro_batch, ep, etp = key
        experts = self._model.experts
        if experts is None or experts.count % ep or experts.ffn % etp:
            raise KeyError(key)
        return self._layers.make("moe_block", gpu_type, tp, micro_batch, ep, etp)

    def __iter__(self) -> Iterator[TileKey]:
        """No key: the grid has EP 1 and ETP = TP only."""
        return iter(())

    def __len__(self) -> int:
        """None of the grid."""
        return 0


def generate(
    model: ModelShape,
    sequence_length: int,
    precision: str,
    gpus: Sequence[GpuHardware] = tuple(HARDWARE.values()),
    *,
    sequence_parallel: bool = False,
) -> Profile:
    """The modelled profile of a model; entries off the grid are made when they are asked for."""
    layers = GeneratedLayers(model, gpus, (sequence_length, precision, sequence_parallel))
    slowest = min((gpu.node_nic for gpu in gpus), key=lambda nic: nic.bandwidth_bytes_per_s)
    return Profile(
        model=model.name,
        sequence_length=sequence_length,
        precision=precision,
        origin="modelled",
        provenance="; ".join(f"{gpu.name}: {gpu.source}" for gpu in gpus),
        types={gpu.name: gpu_type(gpu) for gpu in gpus},
        layers=layers,
        inside_links={gpu.name: _link(gpu.point_to_point) for gpu in gpus},
        network=_link(slowest),
        nics={gpu.name: _link(gpu.node_nic) for gpu in gpus},
        rings={gpu.name: {n: _link(ring) for n, ring in gpu.rings.items()} for gpu in gpus},
        link_origin="assumed",
        tiles=GeneratedTiles(model, layers),
        sequence_parallel=sequence_parallel,
    )


def gpu_type(gpu: GpuHardware) -> GpuType:
    """Memory, reserve and optimizer step of a GPU type."""
    reserve = round(RESERVE_SHARE * gpu.memory_bytes) + RESERVE_BYTES
    rate = gpu.memory_bytes_s * gpu.memory_efficiency
    return GpuType(
        name=gpu.name,
        memory_bytes=gpu.memory_bytes,
        reserve_bytes=reserve,
        optimizer_latency_s=gpu.step_s,
        optimizer_s_per_parameter=round(OPTIMIZER_BYTES / rate, 18),
    )


def _link(ring: Ring) -> LinkCost:
    return LinkCost(ring.latency_s, ring.bandwidth_bytes_per_s)


@lru_cache(maxsize=32)
def _generated(model: ModelShape, length: int, precision: str, parallel: bool) -> Profile:
    return generate(model, length, precision, sequence_parallel=parallel)


def find_profile(
    workload: Workload, directory: Path | None = None, *, off_grid: bool = False
) -> Profile:
    """The profile of a workload: from its folder, else the modelled one.

    Args:
        workload: model, sequence length, precision, sequence parallelism, wire.
        directory: of all profiles; those that come with Heddle if not given.
        off_grid: whether a modelled profile may make entries that its files do not hold, for
            pricing; the search matches exactly, tilings of experts apart, which no file holds.

    Raises:
        UnprofiledConfiguration: `directory` was named and has no profile of this workload, or a
            file cannot be read.
    """
    profile = _found_profile(workload, directory, off_grid)
    return staged(profile, workload) if workload.wire == "staged" else profile


def _found_profile(workload: Workload, directory: Path | None, off_grid: bool) -> Profile:
    model = workload.model
    folder = (PROFILES if directory is None else directory) / model.name
    if directory is not None or (folder.exists() and MODELS.get(model.name) == model):
        profile = load_profile(model.name, directory)
        stated = (profile.sequence_length, profile.precision, profile.sequence_parallel)
        asked = (workload.sequence_length, workload.precision, workload.sequence_parallel)
        made = off_grid and profile.origin == "modelled" and set(profile.types) <= set(HARDWARE)
        if directory is not None:
            return profile
        if "demo-fast" in profile.types and workload.wire == "nccl":
            return _emulated(profile, workload.precision)
        if stated == asked and not made and "demo-fast" not in profile.types:
            return _with_tiles(profile, model) if model.experts else profile
    return _generated(
        model, workload.sequence_length, workload.precision, workload.sequence_parallel
    )


def _emulated(profile: Profile, precision: str) -> Profile:
    """The demo's types in another precision than their files': as fast, other bytes a value."""
    if profile.precision == precision:
        return profile
    now, before = VALUE_BYTES[precision], VALUE_BYTES[profile.precision]

    def other(cost: LayerCost) -> LayerCost:
        return replace(
            cost,
            activation_bytes=cost.activation_bytes * now // before,
            attention_bytes=cost.attention_bytes * now // before,
            input_bytes=cost.input_bytes * now // before,
        )

    layers = {key: other(cost) for key, cost in profile.layers.items()}
    tiles = {key: other(cost) for key, cost in profile.tiles.items()}
    return replace(profile, precision=precision, layers=layers, tiles=tiles)


def _with_tiles(profile: Profile, model: ModelShape) -> Profile:
    """The same with every tiling of the experts: files hold the plain one only, they are many."""
    gpus = tuple(HARDWARE[name] for name in profile.types if name in HARDWARE)
    if profile.origin != "modelled" or len(gpus) < len(profile.types):
        return profile
    settings = (profile.sequence_length, profile.precision, profile.sequence_parallel)
    return replace(profile, tiles=GeneratedTiles(model, GeneratedLayers(model, gpus, settings)))


def profile_files(model: ModelShape) -> dict[str, str]:
    """{file name: text} of a model's folder in `profiles/`."""
    profile = generate(model, SEQUENCE_LENGTH, PRECISION)
    texts: dict[str, str] = {}
    for name in profile.types:
        gpu = find_gpu(name)
        rows = [
            {"kind": kind, "tp": tp, "micro_batch": b} | as_row(profile.layers[kind, name, tp, b])
            for kind, held, tp, b in profile.layers
            if held == name
        ]
        head = {
            "model": model.name,
            "sequence_length": SEQUENCE_LENGTH,
            "precision": PRECISION,
            "origin": "modelled",
            "provenance": _provenance(gpu),
            "gpu_type": as_row(profile.types[name]),
        }
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        texts[f"{name}.json"] = (
            f'{json.dumps(head, indent=1)[:-2]},\n "layers": [\n  {lines}\n ]\n}}\n'
        )
    texts[LINKS_FILE] = json.dumps(_links(profile), indent=1) + "\n"
    return texts


# Fields of a type that its layers do not depend on, or that its file has elsewhere.
_NO_CONSTANTS = (
    *("name", "source", "memory_bytes", "has_bf16"),
    *("rings", "point_to_point", "node_nic", "host_link_bytes_per_s"),
)


def _provenance(gpu: GpuHardware) -> dict[str, Any]:
    constants = {name: value for name, value in vars(gpu).items() if name not in _NO_CONSTANTS}
    return {
        "hardware": f"no {gpu.name} was used; constants: {gpu.source}",
        "formula": (
            "planner.profiles.operators: per operator launch_s + max(flops / (peak "
            "gemm_efficiency), bytes / (memory_bytes_s memory_efficiency)), "
            "at least the host's launches; "
            "python -m planner.profiles.generator writes this file again"
        ),
        **constants,
    }


def _links(profile: Profile) -> dict[str, Any]:
    return {
        "origin": profile.link_origin,
        "provenance": {
            "hardware": "data sheets and collective tables; see planner.cluster.gpu_types"
        },
        "inside_node": {name: as_row(link) for name, link in profile.inside_links.items()},
        "between_nodes": as_row(profile.network),
        "nics": {name: as_row(nic) for name, nic in profile.nics.items()},
        "rings": {
            name: {str(size): as_row(ring) for size, ring in rings.items()}
            for name, rings in profile.rings.items()
        },
    }


def write_profiles(directory: Path) -> tuple[Path, ...]:
    """Write the folders of all named models but the demo's; returns the paths of the files."""
    paths = []
    for model in MODELS.values():
        if model.name in DEMO_MODELS:
            continue
        folder = directory / model.name
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in profile_files(model).items():
            (folder / name).write_text(text, encoding="utf-8")
            paths.append(folder / name)
    return tuple(paths)


if __name__ == "__main__":
    write_profiles(Path(sys.argv[1]) if len(sys.argv) > 1 else PROFILES)
