"""Write what was measured into a profile's folder: new keys are added, old ones replaced.

Invariant: a file that holds any measured entry says so with hardware, versions and date; entries of
a modelled file never stay beside measured ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.errors import FIELD, UnprofiledConfiguration
from planner.model.workload import GpuWire
from planner.profiles.entries import GpuType, LinkCost, as_row
from planner.profiles.profile import LINKS_FILE
from planner.profiles.schema import TypeFile, read_links_file, read_type_file
from worker.errors import WorkerError
from worker.profile.rows import Part, Row, RowKey


def write_layers(
    path: Path,
    head: Mapping[str, Any],
    gpu_type: GpuType,
    layers: Mapping[RowKey, Row],
) -> int:
    """Write the file of one GPU type.

    Args:
        path: of the file; its measured entries of other keys stay.
        head: model, shape, sequence_length, precision and provenance.
        gpu_type: memory and optimizer of the type.
        layers: what was measured.

    Returns:
        How many entries the file holds now.

    Raises:
        UnprofiledConfiguration: the file is of another model, shape, length or precision.
    """
    kept: dict[RowKey, Row] = {}
    if path.exists():
        old = read_type_file(path)
        stated = (old.model, old.sequence_length, old.precision, old.shape)
        asked = (head["model"], head["sequence_length"], head["precision"], head.get("shape", ""))
        if old.origin == "measured" and stated != asked:
            raise UnprofiledConfiguration(
                f"profile file {path} holds {stated}, measured was {asked}; name another folder "
                f"as {FIELD}",
                field="output_path",
                code="Mismatch",
            )
        if old.origin == "measured":
            kept = rows_of(old)
            gpu_type = replace(  # layers of one device measure no group
                gpu_type, group_bytes=gpu_type.group_bytes or old.gpu_type.group_bytes
            )
    kept.update(layers)
    rows = [
        {"kind": part.kind, "tp": tp, "micro_batch": b}
        | ({"ep": part.ep, "etp": part.etp} if part.etp else {})
        | as_row(row.cost)
        | _how(row)
        for (part, tp, b), row in sorted(kept.items(), key=lambda entry: entry[0])
    ]
    content = {**head, "origin": "measured", "gpu_type": as_row(gpu_type), "layers": rows}
    _write(path, content)
    return len(rows)


def write_group_bytes(path: Path, group_bytes: int) -> bool:
    """Write the bytes of a group into the measured file of a GPU type.

    Returns:
        Whether there is such a file.
    """
    if not path.exists() or read_type_file(path).origin != "measured":
        return False
    content = json.loads(path.read_text(encoding="utf-8"))
    content["gpu_type"]["group_bytes"] = group_bytes
    _write(path, content)
    return True


def rows_of(file: TypeFile) -> dict[RowKey, Row]:
    """The rows of a file; of earlier versions without what is known of their measurement."""
    found = {}
    for row in file.layers:
        is_plain = row.ep == 1 and row.etp in (None, row.tp)
        part = Part(row.kind) if is_plain else Part(row.kind, row.ep, row.etp or row.tp)
        found[part, row.tp, row.micro_batch] = Row(row.cost(), row.spread or 0.0, row.load)
    return found


def _how(row: Row) -> dict[str, float]:
    load = {} if row.load is None else {"load": round(row.load, 2)}
    return {"spread": round(row.spread, 4)} | load


def write_links(
    folder: Path,
    gpu_type: str,
    provenance: Mapping[str, Any],
    *,
    message: LinkCost | None = None,
    rings: Mapping[int, LinkCost] | None = None,
    network: LinkCost | None = None,
    wire: GpuWire = "nccl",
) -> str:
    """Add links to the folder's links file; what nobody measured stays, or is assumed.

    Returns:
        The origin of the whole file: `measured` once the network and the links of all types are.

    Raises:
        UnprofiledConfiguration: the file has links of another wire.
    """
    path = folder / LINKS_FILE
    content: dict[str, Any] = {"origin": "assumed", "inside_node": {}, "rings": {}}
    content |= {"between_nodes": as_row(network or LinkCost(1e-4, 1.25e9)), "provenance": {}}
    if path.exists():
        held = read_links_file(path).wire
        if held != wire:
            raise UnprofiledConfiguration(
                f"{path} has links of the wire {held}, measured were those of {wire}; name another "
                "folder",
                field="wire",
                code="Mismatch",
            )
        content |= json.loads(path.read_text(encoding="utf-8"))
    if wire != "nccl":
        content["wire"] = wire
    measured = set(content["provenance"].get("measured", ()))
    if message is not None:
        content["inside_node"][gpu_type] = as_row(message)
        measured.add(gpu_type)
    else:
        content["inside_node"].setdefault(gpu_type, as_row(LinkCost(3e-5, 1e10)))
    if rings:
        held = content.setdefault("rings", {}).setdefault(gpu_type, {})
        held |= {str(n): as_row(r) for n, r in rings.items()}
    if network is not None:
        content["between_nodes"] = as_row(network)
        content.pop("nics", None)
        measured.add("between_nodes")
    wanted = {*content["inside_node"], "between_nodes"}
    content["origin"] = "measured" if wanted <= measured else "assumed"
    content["provenance"] = {**provenance, "measured": sorted(measured)}
    _write(path, content)
    return str(content["origin"])


def make_folder(folder: Path) -> None:
    """Make the folder of a profile; before anything is measured, as it may be refused.

    Raises:
        WorkerError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkerError(
            f"profiles cannot be written to {folder}: {error.strerror}; name another folder "
            f"as {FIELD}",
            field="output_path",
            code="Unwritable",
        ) from None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    make_folder(path.parent)
    whole = path.with_name(f".{path.name}.{os.getpid()}")  # no reader ever sees a part of a file
    try:
        whole.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        whole.replace(path)
    except OSError as error:
        raise WorkerError(
            f"profile file {path} cannot be written: {error.strerror}; name another folder "
            f"as {FIELD}",
            field="output_path",
            code="Unwritable",
        ) from None
