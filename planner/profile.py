"""What one layer costs on which device, and what the links cost.

Entries are keyed by exactly (kind, GPU type, TP degree, micro-batch).
Invariant: an entry is looked up or missing, never interpolated; what the profile does not hold
leaves the search space.  Every file says whether its numbers were measured or modelled.
Source: Heddle, section 5.2 (profile-based cost model).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from planner.errors import UnprofiledConfiguration
from planner.workload import Workload

Kind = Literal["embedding", "block", "head"]
Origin = Literal["measured", "modelled"]
LayerKey = tuple[Kind, str, int, int]  # kind, GPU type, TP degree, micro-batch

PROFILES = Path(__file__).parent.parent / "profiles"
LINKS_FILE = "links.json"


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer, one micro-batch, one rank of a TP group.

    Attributes:
        forward_s: computation of the forward pass.
        backward_s: computation of the backward pass.
        tp_communication_s: all collectives inside the TP group, both passes together.
        activation_bytes: kept from the forward to the backward pass.
    """

    forward_s: float
    backward_s: float
    tp_communication_s: float
    activation_bytes: int


@dataclass(frozen=True, slots=True)
class LinkCost:
    """A link as latency and rate."""

    latency_s: float
    bandwidth_bytes_per_s: float

    def seconds(self, num_bytes: float) -> float:
        """Time of one message of that size."""
        return self.latency_s + num_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class GpuType:
    """A profiled device type.

    Attributes:
        name: as nodes and stages write it.
        memory_bytes: physical memory of one GPU.
        reserve_bytes: of it, what no plan may use (framework, allocator, fragments).
        optimizer_latency_s: of one optimizer step, whatever its size.
        optimizer_s_per_parameter: what each parameter adds to it.
    """

    name: str
    memory_bytes: int
    reserve_bytes: int
    optimizer_latency_s: float
    optimizer_s_per_parameter: float

    @property
    def usable_bytes(self) -> int:
        """What a plan may fill."""
        return self.memory_bytes - self.reserve_bytes


@dataclass(frozen=True)
class Profile:
    """All costs of one model at one sequence length and precision.

    Attributes:
        model: name of the model.
        sequence_length: tokens a sample.
        precision: of weights and gradients.
        origin: whether the numbers were measured or modelled.
        provenance: hardware, versions and date, or the formula and its constants.
        types: device types by name.
        layers: costs by exact key.
        inside_links: link between two GPUs of one node, by GPU type.
        network: link between two nodes; its rate is that of one node's NIC.
    """

    model: str
    sequence_length: int
    precision: str
    origin: Origin
    provenance: str
    types: Mapping[str, GpuType]
    layers: Mapping[LayerKey, LayerCost]
    inside_links: Mapping[str, LinkCost]
    network: LinkCost

    def layer_cost(self, kind: Kind, gpu_type: str, tp: int, micro_batch: int) -> LayerCost:
        """The entry of exactly that key.

        Raises:
            UnprofiledConfiguration: there is none; the message names the key.
        """
        cost = self.layers.get((kind, gpu_type, tp, micro_batch))
        if cost is None:
            self.gpu_type(gpu_type)
            raise UnprofiledConfiguration(
                f"the profile of {self.model} has no {kind} on {gpu_type} with TP {tp} and "
                f"micro-batch {micro_batch}; it has TP {_listed(self.tp_degrees(gpu_type))} and "
                f"micro-batch {_listed(self.micro_batches(gpu_type))}"
            )
        return cost

    def gpu_type(self, name: str) -> GpuType:
        """The device type of that name.

        Raises:
            UnprofiledConfiguration: the profile does not hold it; the message lists those it holds.
        """
        if name not in self.types:
            raise UnprofiledConfiguration(
                f"GPU type {name!r} has no profile for {self.model}; profiled are "
                f"{', '.join(sorted(self.types))}: use one of them or add a profile file"
            )
        return self.types[name]

    def tp_degrees(self, gpu_type: str) -> tuple[int, ...]:
        """TP degrees with a block entry, ascending."""
        return tuple(sorted({k[2] for k in self.layers if k[:2] == ("block", gpu_type)}))

    def micro_batches(self, gpu_type: str) -> tuple[int, ...]:
        """Micro-batch sizes with a block entry, ascending."""
        return tuple(sorted({k[3] for k in self.layers if k[:2] == ("block", gpu_type)}))

    def optimizer_s(self, gpu_type: str, parameters: int) -> float:
        """Seconds of the optimizer step of a rank that holds that many parameters."""
        kind = self.gpu_type(gpu_type)
        return kind.optimizer_latency_s + kind.optimizer_s_per_parameter * parameters

    def inside_node(self, gpu_type: str) -> LinkCost:
        """The link between two GPUs of one node of that type."""
        self.gpu_type(gpu_type)
        return self.inside_links[gpu_type]

    def between_nodes(self) -> LinkCost:
        """The link between two nodes."""
        return self.network

    def require(self, workload: Workload) -> None:
        """Check that this profile speaks of that workload.

        Raises:
            UnprofiledConfiguration: model, sequence length or precision differ.
        """
        held = (self.model, self.sequence_length, self.precision)
        asked = (workload.model.name, workload.sequence_length, workload.precision)
        if held != asked:
            raise UnprofiledConfiguration(
                f"the profile holds {held[0]} with sequence length {held[1]} in {held[2]}, asked "
                f"was {asked[0]} with {asked[1]} in {asked[2]}; profiles match exactly only"
            )

    @cached_property
    def digest(self) -> str:
        """12 hex digits that name every number of this profile."""
        rows = [
            (self.model, self.sequence_length, self.precision, self.origin),
            sorted((k, _fields(v)) for k, v in self.types.items()),
            sorted((k, _fields(v)) for k, v in self.layers.items()),
            sorted((k, _fields(v)) for k, v in self.inside_links.items()),
            _fields(self.network),
        ]
        return hashlib.blake2b(json.dumps(rows).encode(), digest_size=6).hexdigest()


def _fields(row: Any) -> list[Any]:
    return [getattr(row, name) for name in row.__slots__]


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values)) or "none"


def load_profile(model_name: str, directory: Path | None = None) -> Profile:
    """Read the profile of a model: one file per GPU type, and `links.json`.

    Args:
        model_name: the folder `directory / model_name` is read.
        directory: of all profiles; the one that comes with Heddle if not given.

    Raises:
        UnprofiledConfiguration: the folder or a file is missing or cannot be read as a profile.
    """
    folder = (PROFILES if directory is None else directory) / model_name
    paths = [path for path in sorted(folder.glob("*.json")) if path.name != LINKS_FILE]
    if not paths:
        raise UnprofiledConfiguration(
            f"there is no profile of model {model_name!r} in {folder}; a profile is a folder with "
            f"one JSON file per GPU type and {LINKS_FILE}"
        )
    links = _read_json(folder / LINKS_FILE)
    files = [_read_json(path) for path in paths]
    try:
        return _profile(model_name, files, links)
    except (KeyError, TypeError, ValueError) as error:
        what = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise UnprofiledConfiguration(
            f"the profile in {folder} cannot be read: {what}; compare it with a profile that "
            "comes with Heddle"
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UnprofiledConfiguration(f"profile file {path} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise UnprofiledConfiguration(f"profile file {path} must hold one JSON object")
    return data


def _profile(model: str, files: list[dict[str, Any]], links: dict[str, Any]) -> Profile:
    heads = {(f["model"], f["sequence_length"], f["precision"]) for f in files}
    if heads != {(model, files[0]["sequence_length"], files[0]["precision"])}:
        raise ValueError("its files disagree on model, sequence length or precision")
    types = {f["gpu_type"]["name"]: GpuType(**f["gpu_type"]) for f in files}
    layers: dict[LayerKey, LayerCost] = {}
    for file in files:
        for row in file["layers"]:
            key = (row["kind"], file["gpu_type"]["name"], row["tp"], row["micro_batch"])
            layers[key] = LayerCost(
                float(row["forward_s"]),
                float(row["backward_s"]),
                float(row["tp_communication_s"]),
                int(row["activation_bytes"]),
            )
    inside = {name: LinkCost(**links["inside_node"][name]) for name in types}
    modelled = any(part["origin"] != "measured" for part in (*files, links))
    return Profile(
        model,
        files[0]["sequence_length"],
        files[0]["precision"],
        "modelled" if modelled else "measured",
        "; ".join(dict.fromkeys(str(part["provenance"]["hardware"]) for part in (*files, links))),
        types,
        layers,
        inside,
        LinkCost(**links["between_nodes"]),
    )
