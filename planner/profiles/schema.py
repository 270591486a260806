"""The JSON of a profile's files, checked before anybody computes with it.

Invariant: what passes is complete, finite and not negative.
A file that does not pass is refused in one sentence: file, key, what was found, what was expected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError, with_config

from planner.errors import UnprofiledConfiguration
from planner.model.shape import Kind
from planner.model.workload import GpuWire
from planner.profiles.entries import (
    STRICT,
    Count,
    GpuType,
    LayerCost,
    LayerKey,
    LinkCost,
    Seconds,
    TileKey,
)
from planner.wording import reason_of


class _Part(BaseModel):
    model_config = STRICT

    origin: str
    provenance: dict[str, Any]

    @property
    def hardware(self) -> str:
        return str(self.provenance.get("hardware", "unknown hardware"))


@with_config(STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow(LayerCost):
    """A layer's cost with its key, and how it was measured.

    Attributes:
        spread: how much longer the median of the repeats was than the smallest, as a share of it.
        load: of the machine when it was measured, as the system averages it over a minute; None in
            files of earlier versions and in modelled ones.
    """

    kind: Kind
    tp: Count
    micro_batch: Count
    ep: Count = 1
    etp: Count | None = None
    spread: Seconds | None = None
    load: Seconds | None = None

    def cost(self) -> LayerCost:
        """The cost without its key."""
        return LayerCost(**{field.name: getattr(self, field.name) for field in fields(LayerCost)})


class TypeFile(_Part):
    """The file of one GPU type."""

    origin: Literal["measured", "modelled"]
    model: str
    sequence_length: Count
    precision: str
    gpu_type: GpuType
    layers: list[LayerRow]
    shape: str = ""  # `ModelShape.cost_digest` of what was measured; "": nobody wrote it

    def layer_entries(self) -> Iterator[tuple[LayerKey, LayerCost]]:
        """The costs of layers, and of MoE blocks with EP 1 and ETP = TP."""
        for row in self.layers:
            if row.ep == 1 and row.etp in (None, row.tp):
                yield (row.kind, self.gpu_type.name, row.tp, row.micro_batch), self._cost(row)

    def tile_entries(self) -> Iterator[tuple[TileKey, LayerCost]]:
        """The costs of MoE blocks with any other tiling."""
        for row in self.layers:
            etp = row.tp if row.etp is None else row.etp
            if (row.ep, etp) != (1, row.tp):
                yield (self.gpu_type.name, row.tp, row.micro_batch, row.ep, etp), self._cost(row)

    def _cost(self, row: LayerRow) -> LayerCost:
        cost = row.cost()
        return cost if row.kind in ("embedding", "head") else cost.at_least(self.gpu_type.launch_s)


class LinksFile(_Part):
    """The file of all links, and the wire that they are of."""

    origin: Literal["measured", "modelled", "assumed"]
    inside_node: dict[str, LinkCost]
    between_nodes: LinkCost
    nics: dict[str, LinkCost] = {}
    rings: dict[str, dict[int, LinkCost]] = {}
    wire: GpuWire = "nccl"


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
    except (OSError, ValueError, RecursionError) as error:
        reason = reason_of(error)
        raise UnprofiledConfiguration(
            f"profile file {path} cannot be read: {reason}", code="Unreadable"
        ) from None
    try:
        return form.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UnprofiledConfiguration(
            f"profile file {path} has a wrong value at {key}: found {_found(first)}, expected "
            f"{_expected(first)}",
            field=key,
            code="Malformed",
        ) from None


def _found(error: Any) -> str:
    if error["type"] == "missing":
        return "nothing"
    text = repr(error["input"])
    return text if len(text) <= 60 else f"{text[:57]}..."


def _expected(error: Any) -> str:
    if error["type"] == "missing":
        return "this key"
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return "no such key"
    message = str(error["msg"])
    return message.removeprefix("Input should be ").rstrip(".")
