"""The GPU types that have a modelled profile: data sheets, and constants fitted to measurements.

`gpu_types.toml` beside this file holds three kinds of numbers.  *Peaks* are vendors' figures
(dense, fp32 accumulation).  *Fitted* ones (efficiencies, launch and host times): for the six types
of Sailor's fp16 operator profiles to those, for `a100-80` to half of vTrain's measured iterations;
`benchmarks.fit` says how and fits them again.  *Carried over* ones are those of the nearest
fitted type with the launches of whole iterations, and `source` says which.  Rings are linear fits
to collective tables where there is one.
Invariant: the fit prices no held-out row of an iteration; operator profiles are fitted whole.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.cluster.hardware import GpuHardware, Ring
from planner.errors import UnprofiledConfiguration


def _fields(rows: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Facts of a type: its own, and those of the type that it is like."""
    row = dict(rows[name])
    inherited = _fields(rows, row.pop("like")) if "like" in row else {}
    if "memory_gib" in row:
        row["memory_bytes"] = round(row.pop("memory_gib") * 2**30)
    return {**inherited, **row, "name": name}


def _hardware(fields: Mapping[str, Any]) -> GpuHardware:
    rings = {int(size): Ring(*link) for size, link in fields["rings"].items()}
    links = {key: Ring(*fields[key]) for key in ("point_to_point", "node_nic")}
    return GpuHardware(**{**fields, "rings": rings, "node_gpus": max(rings), **links})


def _read(path: Path) -> dict[str, GpuHardware]:
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: _hardware(_fields(rows, name)) for name in rows}


HARDWARE = _read(Path(__file__).with_suffix(".toml"))


def find_gpu(name: str) -> GpuHardware:
    """The hardware of that name.

    Raises:
        UnprofiledConfiguration: there is none; the message lists those there are.
    """
    if name not in HARDWARE:
        raise UnprofiledConfiguration(
            f"GPU type {name!r} has no profile; known are {', '.join(sorted(HARDWARE))}: use "
            f"one of them, or measure it with `heddle profile`",
            code="Unknown",
        )
    return HARDWARE[name]
