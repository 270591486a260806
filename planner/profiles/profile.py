"""Cost of one layer on each device, and cost of the links.

Entries are keyed by exactly (kind, GPU type, TP degree, micro-batch).
Invariant: an entry is looked up or missing, never interpolated; what the profile does not hold
leaves the search space.  Every file says whether its numbers were measured or modelled.
Source: Heddle, section 5.2 (profile-based cost model).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from planner.errors import FIELD, UnprofiledConfiguration
from planner.model.shape import Kind
from planner.model.workload import GpuWire, Workload
from planner.profiles.entries import GpuType, LayerCost, LayerKey, LinkCost, Origin, TileKey
from planner.profiles.schema import LinksFile, TypeFile, read_links_file, read_type_file

__all__ = ["GpuType", "Kind", "LayerCost", "LinkCost", "Origin", "Profile", "load_profile"]


BLOCKS = ("block", "moe_block")
PROFILES = Path(__file__).parents[2] / "profiles"
LINKS_FILE = "links.json"


@dataclass(frozen=True, kw_only=True)
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
        nics: the NIC of a node by its GPU type, where types differ; else `network`.
        rings: all-reduce among that many GPUs of one node, by GPU type and number; the bytes of a
            ring are 2 (R-1)/R of the message.
        link_origin: `measured`, `modelled`, or `assumed` until somebody measures them.
        tiles: MoE blocks with another tiling than EP 1, ETP = TP.
        sequence_parallel: whether its activations are those of Megatron's sequence parallelism.
        wire: what its messages travel on; `planner.profiles.staged` makes the other one.
        shape: `ModelShape.cost_digest` of the model that was measured; "": its name says enough.
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
    nics: Mapping[str, LinkCost] = field(default_factory=dict)
    rings: Mapping[str, Mapping[int, LinkCost]] = field(default_factory=dict)
    link_origin: str = "modelled"
    tiles: Mapping[TileKey, LayerCost] = field(default_factory=dict)
    sequence_parallel: bool = False
    wire: GpuWire = "nccl"
    shape: str = ""

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
                f"micro-batch {_listed(self.micro_batches(gpu_type))}",
                code="Missing",
            )
        return cost

    def tiled_cost(self, gpu_type: str, tp: int, micro_batch: int, ep: int, etp: int) -> LayerCost:
        """The MoE block with its experts in EP x ETP; EP 1, ETP = TP is its plain entry.

        Raises:
            UnprofiledConfiguration: there is none; the message names the key.
        """
        if (ep, etp) == (1, tp):
            return self.layer_cost("moe_block", gpu_type, tp, micro_batch)
        cost = self.tiles.get((gpu_type, tp, micro_batch, ep, etp))
        if cost is None:
            raise UnprofiledConfiguration(
                f"the profile of {self.model} has no MoE block on {gpu_type} with TP {tp}, "
                f"micro-batch {micro_batch}, EP {ep} and ETP {etp}",
                code="Missing",
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
                f"{', '.join(sorted(self.types))}: use one of them or add a profile file",
                code="Unknown",
            )
        return self.types[name]

    def tp_degrees(self, gpu_type: str) -> tuple[int, ...]:
        """TP degrees with a block entry, ascending."""
        return tuple(sorted({k[2] for k in self.layers if k[0] in BLOCKS and k[1] == gpu_type}))

    def micro_batches(self, gpu_type: str) -> tuple[int, ...]:
        """Micro-batch sizes with a block entry, ascending."""
        return tuple(sorted({k[3] for k in self.layers if k[0] in BLOCKS and k[1] == gpu_type}))

    def inside_node(self, gpu_type: str) -> LinkCost:
        """The link between two GPUs of one node of that type."""
        self.gpu_type(gpu_type)
        return self.inside_links[gpu_type]

    def inside_ring(self, gpu_type: str, size: int) -> LinkCost:
        """Link of an all-reduce among that many GPUs of a node of that type.

        Of a size that nobody knows it is the slower one of the next smaller and the next larger
        ring; where no ring is known, the link between two GPUs.
        """
        rings = self.rings.get(gpu_type)
        if not rings:
            return self.inside_node(gpu_type)
        beside = {
            max((known for known in rings if known <= size), default=min(rings)),
            min((known for known in rings if known >= size), default=max(rings)),
        }
        return min((rings[one] for one in beside), key=lambda link: link.bandwidth_bytes_per_s)

    def between_nodes(self, *gpu_types: str) -> LinkCost:
        """The link between nodes of these types: the slowest NIC of them."""
        nics = [self.nics.get(gpu_type, self.network) for gpu_type in gpu_types]
        return min(nics or [self.network], key=lambda nic: nic.bandwidth_bytes_per_s)

    def require(self, workload: Workload) -> None:
        """Check that this profile speaks of that workload.

        Raises:
            UnprofiledConfiguration: model, sequence length, precision or wire differ.
        """
        if self.shape and self.shape != workload.model.cost_digest:
            raise UnprofiledConfiguration(
                f"the profile of {self.model} was measured on a model of other sizes; measure this "
                "one with `heddle profile`, or give it a name of its own",
                field="model",
                code="Mismatch",
            )
        if self.wire != workload.wire:
            raise UnprofiledConfiguration(
                f"the profile of {self.model} has links of the wire {self.wire}, asked was one of "
                f"{workload.wire}; ask for {self.wire} as {FIELD}, or name another folder",
                field="wire",
                code="Mismatch",
            )
        held = (self.model, self.sequence_length, self.precision)
        asked = (workload.model.name, workload.sequence_length, workload.precision)
        if self.sequence_parallel != workload.sequence_parallel:
            raise UnprofiledConfiguration(
                f"the profile of {self.model} is one {_with(self.sequence_parallel)} sequence "
                f"parallelism, asked was one {_with(workload.sequence_parallel)} it",
                code="Mismatch",
            )
        if held != asked:
            raise UnprofiledConfiguration(
                f"the profile holds {held[0]} with sequence length {held[1]} in {held[2]}, asked "
                f"was {asked[0]} with {asked[1]} in {asked[2]}; profiles match exactly only",
                code="Mismatch",
            )

    @cached_property
    def digest(self) -> str:
        """12 hex digits that name every number of this profile."""
        rows = [
            (self.model, self.sequence_length, self.precision, self.origin),
            (self.link_origin, self.sequence_parallel),
            sorted((k, _fields(v)) for k, v in self.types.items()),
            sorted((k, _fields(v)) for k, v in self.layers.items()),
            sorted((k, _fields(v)) for k, v in self.tiles.items()),
            sorted((k, _fields(v)) for k, v in self.inside_links.items()),
            _fields(self.network),
            sorted((k, _fields(v)) for k, v in self.nics.items()),
            sorted((k, n, _fields(v)) for k, ring in self.rings.items() for n, v in ring.items()),
            *([self.wire] if self.wire != "nccl" else []),
        ]
        return hashlib.blake2b(json.dumps(rows).encode(), digest_size=6).hexdigest()


# Fields that profiles of before do not have: they count where they are stated, so that a profile
# without them keeps its digest.
_LATER = {
    "staging": None,
    "launch_s": 0.0,
    "host_copy_bytes_per_s": None,
    "update_digest": "",
    "group_bytes": 0,
}


def _fields(row: Any) -> list[Any]:
    first = [getattr(row, name) for name in row.__slots__ if name not in _LATER]
    later = {name: getattr(row, name) for name in row.__slots__ if name in _LATER}
    return [*first, *([name, str(value)] for name, value in later.items() if value != _LATER[name])]


def _with(present: bool) -> str:
    return "with" if present else "without"


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values)) or "none"


def load_profile(model_name: str, directory: Path | None = None) -> Profile:
    """Read the profile of a model: one file per GPU type, and `links.json`.

    Args:
        model_name: the folder `directory / model_name` is read.
        directory: of all profiles; the one that comes with Heddle if not given.

    Raises:
        UnprofiledConfiguration: the folder is missing, or a file cannot be read as a profile; the
            message names file, key, what was found and what was expected.
    """
    folder = (PROFILES if directory is None else directory) / model_name
    paths = [path for path in sorted(folder.glob("*.json")) if path.name != LINKS_FILE]
    if not paths:
        raise UnprofiledConfiguration(
            f"there is no profile of model {model_name!r} in {folder}; a profile is a folder with "
            f"one JSON file per GPU type and {LINKS_FILE}",
            code="Missing",
        )
    links = read_links_file(folder / LINKS_FILE)
    files = [read_type_file(path) for path in paths]
    first = files[0]
    _require_agreement(folder, model_name, files)
    _require_types_once(folder, paths, files)
    types = {file.gpu_type.name: file.gpu_type for file in files}
    _require_links(folder, types, links)
    measured = all(file.origin == "measured" for file in files)
    return Profile(
        model=model_name,
        sequence_length=first.sequence_length,
        precision=first.precision,
        origin="measured" if measured else "modelled",
        provenance="; ".join(dict.fromkeys(part.hardware for part in (*files, links))),
        types=types,
        layers={key: cost for file in files for key, cost in file.layer_entries()},
        inside_links={name: links.inside_node[name] for name in types},
        network=links.between_nodes,
        nics=links.nics,
        rings=links.rings,
        link_origin=links.origin,
        tiles={key: cost for file in files for key, cost in file.tile_entries()},
        wire=links.wire,
        shape=first.shape,
    )


def _require_agreement(folder: Path, model_name: str, files: Sequence[TypeFile]) -> None:
    """Raises `UnprofiledConfiguration` unless all files are of one model, length and precision."""
    stated = {(f.model, f.sequence_length, f.precision, f.shape) for f in files}
    first = files[0]
    if stated != {(model_name, first.sequence_length, first.precision, first.shape)}:
        raise UnprofiledConfiguration(
            f"the profile in {folder} cannot be read: its files disagree on model, sequence "
            f"length, precision or shape; found {', '.join(map(str, sorted(stated)))}",
            code="Contradiction",
        )


def _require_types_once(folder: Path, paths: Sequence[Path], files: Sequence[TypeFile]) -> None:
    """Raises `UnprofiledConfiguration` if two files are of one GPU type."""
    named = [file.gpu_type.name for file in files]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        where = [path.name for path, name in zip(paths, named, strict=True) if name == twice]
        raise UnprofiledConfiguration(
            f"the profile in {folder} has the GPU type {twice!r} in {' and in '.join(where)}; "
            "keep one of these files",
            code="Contradiction",
        )


def _require_links(folder: Path, types: Mapping[str, GpuType], links: LinksFile) -> None:
    """Raises `UnprofiledConfiguration` if a GPU type has no link inside its node."""
    lacking = sorted(set(types) - set(links.inside_node))
    if lacking:
        raise UnprofiledConfiguration(
            f"profile file {folder / LINKS_FILE} lacks the key inside_node.{lacking[0]}; "
            "expected is a link for each GPU type of the folder",
            code="Missing",
        )
