"""The JSON of a profile's files, checked before anybody computes with it.

Invariant: what passes is complete, finite and not negative.
A file that does not pass is refused in one sentence: file, key, what was found, what was expected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.errors import UnprofiledConfiguration
from planner.model.shape import Kind
from planner.profiles.entries import GpuType, LayerCost, LayerKey, LinkCost, TileKey

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MOST = 10**15  # bytes or tokens: beyond it somebody has mistyped, and floats lose whole numbers
Count = Annotated[int, Field(ge=1, le=MOST)]
Bytes = Annotated[int, Field(ge=0, le=MOST)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Part(_Strict):
    origin: str
    provenance: dict[str, Any]

    @property
    def hardware(self) -> str:
        return str(self.provenance.get("hardware", "unknown hardware"))


class LinkRow(_Strict):
    """A link, as `LinkCost`."""

    latency_s: Seconds
    bandwidth_bytes_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    points: list[tuple[Seconds, Seconds]] = []

    def entry(self) -> LinkCost:
        """The link."""
        points = tuple(sorted((size, seconds) for size, seconds in self.points))
        return LinkCost(self.latency_s, self.bandwidth_bytes_per_s, points)


class GpuTypeRow(_Strict):
    """A device type, as `GpuType`."""

    name: str
    memory_bytes: Count
    reserve_bytes: Bytes
    optimizer_latency_s: Seconds
    optimizer_s_per_parameter: Seconds

    def entry(self) -> GpuType:
        """The device type."""
        return GpuType(**self.model_dump())


class LayerRow(_Strict):
    """A layer's cost with its key."""

    kind: Kind
    tp: Count
    micro_batch: Count
    forward_s: Seconds
    backward_s: Seconds
    tp_communication_s: Seconds
    activation_bytes: Bytes
    attention_s: Seconds = 0.0
    attention_bytes: Bytes = 0
    input_bytes: Bytes = 0
    ep: Count = 1
    etp: Count | None = None

    def entry(self) -> LayerCost:
        """The cost without its key."""
        key = {"kind", "tp", "micro_batch", "ep", "etp"}
        return LayerCost(**self.model_dump(exclude=key))


class TypeFile(_Part):
    """The file of one GPU type."""

    origin: Literal["measured", "modelled"]
    model: str
    sequence_length: Count
    precision: str
    gpu_type: GpuTypeRow
    layers: list[LayerRow]

    def layer_entries(self) -> Iterator[tuple[LayerKey, LayerCost]]:
        """The costs of layers, and of MoE blocks with EP 1 and ETP = TP."""
        for row in self.layers:
            if row.ep == 1 and row.etp in (None, row.tp):
                yield (row.kind, self.gpu_type.name, row.tp, row.micro_batch), row.entry()

    def tile_entries(self) -> Iterator[tuple[TileKey, LayerCost]]:
        """The costs of MoE blocks with any other tiling."""
        for row in self.layers:
            etp = row.tp if row.etp is None else row.etp
            if (row.ep, etp) != (1, row.tp):
                yield (self.gpu_type.name, row.tp, row.micro_batch, row.ep, etp), row.entry()


class LinksFile(_Part):
    """The file of all links."""

    origin: Literal["measured", "modelled", "assumed"]
    inside_node: dict[str, LinkRow]
    between_nodes: LinkRow
    nics: dict[str, LinkRow] = {}
    rings: dict[str, dict[int, LinkRow]] = {}


_File = TypeVar("_File", TypeFile, LinksFile)


def read_type_file(path: Path) -> TypeFile:
    """Read the file of one GPU type.

    Raises:
        UnprofiledConfiguration: with file, key, what was found and what was expected.
    """
    return _read(path, TypeFile)


def read_links_file(path: Path) -> LinksFile:
    """Read the file of all links.

    Raises:
        UnprofiledConfiguration: as `read_type_file`.
    """
    return _read(path, LinksFile)


def _read(path: Path, form: type[_File]) -> _File:
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text)
    except (OSError, ValueError) as error:
        raise UnprofiledConfiguration(f"profile file {path} cannot be read: {error}") from None
    try:
        return form.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UnprofiledConfiguration(
            f"profile file {path} has a wrong value at {key}: found {_found(first)}, expected "
            f"{_expected(first)}"
        ) from None


def _found(error: Any) -> str:
    if error["type"] == "missing":
        return "nothing"
    text = repr(error["input"])
    return text if len(text) <= 60 else f"{text[:57]}..."


def _expected(error: Any) -> str:
    if error["type"] == "missing":
        return "this key"
    if error["type"] == "extra_forbidden":
        return "no such key"
    message = str(error["msg"])
    return message.removeprefix("Input should be ").rstrip(".")
