"""Measured plans that nobody here made, set by set, each cut into a fitted and a held-out half.

A folder supplies rows only; what its rows do not say (GPU, node, links, precision, recomputation,
vocabulary) comes from a facts file keyed by the set's path below the folder.
Invariant: which half of a set a row belongs to depends on the groups of the set and a committed
seed alone, never on the order of rows.  Groups stay whole: a pick from half a group says nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.validation.facts import SetFacts, read_facts
from benchmarks.validation.readers import (
    Group,
    Hardware,
    MeasuredPlan,
    read_plan_file,
    read_row_file,
)
from planner.cluster.gpu_types import HARDWARE
from planner.errors import InvalidMeasurements

SPLIT_SEED = 0
# Beside the sets: what other tables, notes and licences such a folder holds.
NOT_SETS = (
    "README.md",
    "sets.yaml",
    "LICENSE*",
    "*/LICENSE*",
    "sailor/aceso_profiler/*",
    "sailor/llm_info.json",
    "sailor/network/*",
    "vtrain/trace_*",
    "calculon/*",
    "galvatron/*",
)


@dataclass(frozen=True, slots=True)
class MeasuredSet:
    """All plans of one set."""

    name: str  # its path below the data folder
    plans: tuple[MeasuredPlan, ...]  # in file order


def read_sets(
    folder: Path, facts_file: Path | None = None, hardware: Hardware = HARDWARE
) -> tuple[MeasuredSet, ...]:
    """All sets of a folder, in the order of the facts file; the shipped one if none is given.

    Raises:
        InvalidMeasurements: the folder holds a file that is in no set, a file cannot be read, or
            there is no set at all.
    """
    facts = read_facts(facts_file)
    if not folder.is_dir():
        raise InvalidMeasurements(f"data folder {folder} is not a folder; name one with --data")
    files: dict[str, list[Path]] = {name: [] for name in facts}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        home = next((key for key in facts if name == key or name.startswith(f"{key}/")), None)
        if home is not None:
            files[home].append(path)
        elif not any(fnmatch(name, pattern) for pattern in NOT_SETS):
            raise InvalidMeasurements(
                f"{path} belongs to no set that the facts file knows; known are "
                f"{', '.join(facts)}: remove the file, or describe its set with --facts"
            )
    sets = tuple(
        MeasuredSet(name, _split(list(_plans(folder / name, facts[name], paths, hardware))))
        for name, paths in files.items()
        if paths
    )
    if not sets:
        raise InvalidMeasurements(
            f"data folder {folder} holds none of the sets {', '.join(facts)}; see its README"
        )
    return sets


def _plans(
    root: Path, facts: SetFacts, paths: list[Path], hardware: Hardware
) -> Iterator[MeasuredPlan]:
    """The plans of some files, labelled with the file below the root."""
    for path in paths:
        name = path.name if path == root else path.relative_to(root).as_posix()
        if name in facts.leave_out:
            continue
        reader = read_row_file if path.suffix == ".csv" else read_plan_file
        for plan in reader(path, facts, hardware):
            memory = None if name in facts.leave_out_memory else plan.memory_bytes
            yield replace(plan, label=f"{name}{plan.label}", memory_bytes=memory)


def _split(plans: Sequence[MeasuredPlan]) -> tuple[MeasuredPlan, ...]:
    """The same plans, those of every other group fitted; the seed orders the groups."""

    def shuffled(group: Group) -> bytes:
        return hashlib.blake2b(f"{SPLIT_SEED} {group}".encode(), digest_size=8).digest()

    groups = sorted({plan.group for plan in plans}, key=shuffled)
    fitted = set(groups[1::2])
    return tuple(replace(plan, fitted=plan.group in fitted) for plan in plans)
