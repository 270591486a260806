"""The content of a job's file, with the user's options in place of what it says."""

from __future__ import annotations

from collections.abc import Mapping

from planner.model.workload import Zero


def with_options(data: object, *, has_output: bool, zero: Zero | None) -> object:
    """The job without its output, if the user names another one, and with the user's word of ZeRO.

    What is no job stays as it is, and is refused as such.
    """
    spec = data.get("spec") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(spec, Mapping):
        return data
    found = {key: value for key, value in spec.items() if key != "output" or not has_output}
    planner = found.get("planner") or {}
    if zero is not None and isinstance(planner, Mapping):
        found["planner"] = {**planner, "zero": zero}
    return {**data, "spec": found}
