"""The JSON of a profile's files, checked before anybody computes with it.

Invariant: what passes is complete, finite and not negative.
A file that does not pass is refused in one sentence: file, key, what was found, what was expected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from planner.entries import GpuType, LayerCost, LayerKey, LinkCost, Origin, TileKey
from planner.errors import UnprofiledConfiguration
from planner.json_form import (
    Form,
    Misfit,
    above_0,
    digits,
    list_of,
    number,
    one_of,
    optional,
    pair,
    record,
    table_of,
    text,
    whole,
)
from planner.model_shape import Kind

LinkOrigin = Literal["measured", "modelled", "assumed"]

COUNT, BYTES = whole(1), whole(0)
PROVENANCE = record({}, {"hardware": (str, "unknown hardware")}, is_closed=False)
LINK = record(
    {"latency_s": number, "bandwidth_bytes_per_s": above_0},
    {"points": (list_of(pair(number, number)), ())},
)
LAYER = record(
    {
        "kind": one_of(*get_args(Kind)),
        "tp": COUNT,
        "micro_batch": COUNT,
        "forward_s": number,
        "backward_s": number,
        "tp_communication_s": number,
        "activation_bytes": BYTES,
    },
    {
        "attention_s": (number, 0.0),
        "attention_bytes": (BYTES, 0),
        "input_bytes": (BYTES, 0),
        "ep": (COUNT, 1),
        "etp": (optional(COUNT), None),
    },
)
GPU_TYPE = record(
    {
        "name": text,
        "memory_bytes": COUNT,
        "reserve_bytes": BYTES,
        "optimizer_latency_s": number,
        "optimizer_s_per_parameter": number,
    }
)
TYPE_FILE = record(
    {
        "origin": one_of(*get_args(Origin)),
        "provenance": PROVENANCE,
        "model": text,
        "sequence_length": COUNT,
        "precision": text,
        "gpu_type": GPU_TYPE,
        "layers": list_of(LAYER),
    }
)
LINKS_FILE = record(
    {
        "origin": one_of(*get_args(LinkOrigin)),
        "provenance": PROVENANCE,
        "inside_node": table_of(LINK),
        "between_nodes": LINK,
    },
    {"nics": (table_of(LINK), {}), "rings": (table_of(table_of(LINK, digits)), {})},
)


@dataclass(frozen=True, slots=True)
class TypeFile:
    """The file of one GPU type.

    Attributes:
        origin: whether its numbers were measured or modelled.
        hardware: on which, or after which.
        model: name of the model.
        sequence_length: tokens a sample.
        precision: of weights and gradients.
        gpu_type: the device type.
        layers: costs of layers, and of MoE blocks with EP 1 and ETP = TP.
        tiles: costs of MoE blocks with any other tiling.
    """

    origin: Origin
    hardware: str
    model: str
    sequence_length: int
    precision: str
    gpu_type: GpuType
    layers: Mapping[LayerKey, LayerCost]
    tiles: Mapping[TileKey, LayerCost]


@dataclass(frozen=True, slots=True)
class LinksFile:
    """The file of all links.

    Attributes:
        origin: whether its numbers were measured, modelled, or assumed.
        hardware: on which, or after which.
        inside_node: between two GPUs of one node, by GPU type.
        between_nodes: between two nodes.
        nics: of a node, by its GPU type.
        rings: among so many GPUs of a node, by GPU type and number.
    """

    origin: LinkOrigin
    hardware: str
    inside_node: Mapping[str, LinkCost]
    between_nodes: LinkCost
    nics: Mapping[str, LinkCost]
    rings: Mapping[str, Mapping[int, LinkCost]]


def read_type_file(path: Path) -> TypeFile:
    """Read the file of one GPU type.

    Raises:
        UnprofiledConfiguration: with file, key, what was found and what was expected.
    """
    content = _read(path, TYPE_FILE)
    gpu_type = GpuType(**content["gpu_type"])
    layers: dict[LayerKey, LayerCost] = {}
    tiles: dict[TileKey, LayerCost] = {}
    for row in content["layers"]:
        kind, tp, b, ep, etp = (row.pop(k) for k in ("kind", "tp", "micro_batch", "ep", "etp"))
        if ep == 1 and etp in (None, tp):
            layers[kind, gpu_type.name, tp, b] = LayerCost(**row)
        else:
            tiles[gpu_type.name, tp, b, ep, etp or tp] = LayerCost(**row)
    return TypeFile(
        content["origin"],
        content["provenance"]["hardware"],
        content["model"],
        content["sequence_length"],
        content["precision"],
        gpu_type,
        layers,
        tiles,
    )


def read_links_file(path: Path) -> LinksFile:
    """Read the file of all links.

    Raises:
        UnprofiledConfiguration: as `read_type_file`.
    """
    content = _read(path, LINKS_FILE)
    return LinksFile(
        content["origin"],
        content["provenance"]["hardware"],
        _links(content["inside_node"]),
        _link(content["between_nodes"]),
        _links(content["nics"]),
        {name: _links(ring) for name, ring in content["rings"].items()},
    )


def _link(row: Mapping[str, Any]) -> LinkCost:
    points = tuple(sorted(row["points"]))
    return LinkCost(row["latency_s"], row["bandwidth_bytes_per_s"], points)


def _links(rows: Mapping[Any, Any]) -> dict[Any, LinkCost]:
    return {key: _link(row) for key, row in rows.items()}


def _read(path: Path, form: Form) -> Any:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UnprofiledConfiguration(f"profile file {path} cannot be read: {error}") from None
    try:
        return form(content)
    except Misfit as misfit:
        raise UnprofiledConfiguration(
            f"profile file {path} has a wrong value at {misfit.key or 'the file'}: found "
            f"{_short(misfit.found)}, expected {misfit.expected}"
        ) from None


def _short(found: str | None) -> str:
    if found is None:
        return "nothing"
    return found if len(found) <= 60 else f"{found[:57]}..."
