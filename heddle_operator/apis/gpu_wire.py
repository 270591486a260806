"""The wire by which the messages of a job on GPUs are priced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.model.workload import GpuWire


def gpu_wire(device: str, template: Mapping[str, Any]) -> GpuWire:
    """Staged on GPUs, unless the job's own template asks for NCCL; `Auto` may have no GPU."""
    asks = any(
        (row.get("name"), row.get("value")) == ("HEDDLE_WIRE", "nccl")
        for one in _rows(template.get("spec"), "containers")
        for row in _rows(one, "env")
    )
    return "staged" if device == "CUDA" and not asks else "nccl"


def _rows(part: object, name: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of a list that are readable: nobody has looked for mistakes in a template yet."""
    found = part.get(name) if isinstance(part, Mapping) else None
    rows = found if isinstance(found, list) else ()
    return tuple(row for row in rows if isinstance(row, Mapping))
