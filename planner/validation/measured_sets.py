"""Measured plans that nobody here made, read into plans that the cost model can price.

A folder supplies rows only; what its rows do not say (GPU, node, links, precision, recomputation,
vocabulary) comes from a facts file keyed by the set's path below the folder.
Invariant: which half of a set a row belongs to depends on the groups of the set and a committed
seed alone, never on the order of rows.  Groups stay whole: a pick from half a group says nothing.
Source of the rows: vTrain (MICRO 2024) and Sailor's validation folder, both MIT.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from planner.cluster.composition import Composition
from planner.cluster.gpu_types import HARDWARE
from planner.cluster.hardware import GpuHardware
from planner.errors import InvalidMeasurements
from planner.model.workload import Workload
from planner.plans.plan import Plan
from planner.profiles.profile import Profile
from planner.validation.measured_case import Group
from planner.validation.sailor_plans import read_plan_file
from planner.validation.set_facts import SetFacts, read_facts
from planner.validation.vtrain_rows import read_row_file

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
class MeasuredPlan:
    """One measured plan.

    Attributes:
        label: file, and line or plan.
        plan: what ran.
        workload: what it trained.
        composition: where.
        profile: the modelled one of its hardware.
        seconds: of an iteration.
        memory_bytes: the peak of any GPU; None where none was measured, or it is not valid.
        group: plans of one group had equal GPUs, batch and model, so that one may be picked.
        fitted: whether it is in the half that constants are fitted on.
    """

    label: str
    plan: Plan
    workload: Workload
    composition: Composition
    profile: Profile
    seconds: float
    memory_bytes: int | None
    group: Group
    fitted: bool


@dataclass(frozen=True, slots=True)
class MeasuredSet:
    """All plans of one set.

    Attributes:
        name: its path below the data folder.
        facts: what the rows do not say.
        plans: in file order.
    """

    name: str
    facts: SetFacts
    plans: tuple[MeasuredPlan, ...]


def read_sets(
    folder: Path,
    facts_file: Path | None = None,
    hardware: Mapping[str, GpuHardware] = HARDWARE,
) -> tuple[MeasuredSet, ...]:
    """All sets of a folder, in the order of the facts file.

    Args:
        folder: laid out as the facts file names it; it may hold fewer sets.
        facts_file: the one that comes with Heddle if not given.
        hardware: constants by GPU type.

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
        MeasuredSet(
            name, facts[name], _split(list(_plans(folder / name, facts[name], paths, hardware)))
        )
        for name, paths in files.items()
        if paths
    )
    if not sets:
        raise InvalidMeasurements(
            f"data folder {folder} holds none of the sets {', '.join(facts)}; see its README"
        )
    return sets


def _plans(
    root: Path, facts: SetFacts, paths: list[Path], hardware: Mapping[str, GpuHardware]
) -> Iterator[MeasuredPlan]:
    for path in paths:
        name = path.name if path == root else path.relative_to(root).as_posix()
        if name in facts.leave_out:
            continue
        reader = read_row_file if path.suffix == ".csv" else read_plan_file
        for label, case in reader(path, facts, hardware):
            memory = None if name in facts.leave_out_memory else case.memory_bytes
            yield MeasuredPlan(
                f"{name}{label}",
                case.plan,
                case.workload,
                case.composition,
                case.profile,
                case.seconds,
                memory,
                case.group,
                fitted=False,
            )


def _split(plans: Sequence[MeasuredPlan]) -> tuple[MeasuredPlan, ...]:
    """The same plans, those of every other group fitted; the seed orders the groups."""
    groups = sorted({plan.group for plan in plans}, key=_shuffled)
    fitted = set(groups[1::2])
    return tuple(replace(plan, fitted=plan.group in fitted) for plan in plans)


def _shuffled(group: Group) -> bytes:
    return hashlib.blake2b(f"{SPLIT_SEED} {group}".encode(), digest_size=8).digest()
