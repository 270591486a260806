"""The wire by which the messages of a job on GPUs are priced.

Until pods run it is what their templates ask for.  Then it is what their agents report: a variable
may come from a Secret or the image, and only a pod knows whether it has a driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from heddle_operator.apis.labels import WORKER
from planner.model.workload import GpuWire
from worker.contract import Report
from worker.gpu_wire import ASKED, VARIABLE, wire_asked


def gpu_wire(device: str, templates: Iterable[Mapping[str, Any]]) -> GpuWire:
    """The wire that pods will use on GPUs; the usual one where it is not known that they have any.

    Args:
        device: `spec.worker.device`.
        templates: of the pods; a later one overrides.
    """
    said = ""
    for template in templates:
        for row in _variables(template):
            if row.get("name") == VARIABLE:
                said = str(row.get("value")).lower()
    if device != "CUDA":
        return "nccl"
    return _priced(wire_asked("cuda", said if said in ASKED else ""))


def wire_seen(reports: Iterable[Report]) -> GpuWire | None:
    """The wire that plans are priced by, as pods report it; None: no pod says it.

    One staged rank makes all of them wait.
    """
    said = {report.wire for report in reports} - {None}
    return ("staged" if "staged" in said else "nccl") if said else None


def _priced(wire: str) -> GpuWire:
    return "staged" if wire == "staged" else "nccl"


def _variables(template: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Of the worker's container, as far as they are readable."""
    for one in _rows(template.get("spec"), "containers"):
        if one.get("name") == WORKER:
            yield from _rows(one, "env")


def _rows(part: object, name: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of a list that are readable: nobody has looked for mistakes in a template yet."""
    found = part.get(name) if isinstance(part, Mapping) else None
    rows = found if isinstance(found, list) else ()
    return tuple(row for row in rows if isinstance(row, Mapping))
