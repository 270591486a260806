"""The measured profile of this machine for a job's model: made at first use, then read.

Kept under the user's cache folder by everything that a time depends on: the model's shape, sequence
length, precision, processor and the version of torch.
Invariant: what is read here was measured on this machine, and a run gets a copy of its own in which
each rank has its share of the machine's memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from heddle.local.child import run_child
from heddle.train.machine import ALIAS, Machine
from heddle_operator.apis.errors import ProcessFailed
from planner.errors import UnprofiledConfiguration
from planner.model.workload import Workload
from planner.profiles.profile import load_profile
from planner.profiles.schema import read_type_file
from planner.wording import reason_of
from worker.profile.files import rows_of
from worker.profile.rows import worth_measuring

NAME = "model"  # in the cache; the same shape has the same times, whatever it is called
FORM = 2  # of what is measured; grows with every change of that
Progress = Callable[[int, int, str], None]


def cache_folder(kind: str = "profiles") -> Path:
    """Where profiles of this machine are kept, or data sets made of text (`data`)."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "heddle" / kind


def data_options() -> tuple[str, ...]:
    """Options of `heddle data prepare` for the built-in text, which is kept in the cache."""
    return "--builtin", "text", "--cache", str(cache_folder("data"))


def folder_of(machine: Machine, workload: Workload, torch_version: str) -> Path:
    """The folder of the profile of one model on this machine."""
    model = workload.model
    # A width of 0 stands for the usual one, which a config.json says in full.
    known = {**model.to_json(), "name": NAME, "head_width": model.head_dim}
    shape = json.dumps(known, sort_keys=True)
    stated = (
        FORM,
        shape,
        workload.sequence_length,
        workload.precision,
        machine.processor,
        machine.cores,
        torch_version,
    )
    digest = hashlib.blake2b(json.dumps(stated).encode(), digest_size=8).hexdigest()
    return cache_folder() / f"{machine.gpu_type}-{digest}"


async def measured_folder(
    machine: Machine, workload: Workload, environment: dict[str, str], progress: Progress
) -> Path:
    """The folder; measured now if it is not there or damaged, in a process of its own.

    Rows that were measured while the machine was busy, or that contradict each other, are measured
    again once it is quieter.

    Raises:
        ProcessFailed: it could not be measured; the message holds the reason.
    """
    folder = folder_of(machine, workload, version("torch"))
    if _is_damaged(folder, machine):
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists() and not _is_worth_measuring(folder, machine):
        return folder
    question = {
        "model": {**workload.model.to_json(), "name": NAME},
        "gpu_type": machine.gpu_type,
        "processor": machine.processor,
        "sequence_length": workload.sequence_length,
        "precision": workload.precision,
        "cores": machine.cores,
        "memory_bytes": machine.memory_bytes,
        "folder": str(folder),
    }
    progress(0, 1, "torch is imported")  # which takes seconds

    def hear(line: bytes) -> None:
        part = json.loads(line)
        progress(part["done"], part["of"], part["what"])

    await run_child(
        "worker.profile.machine",
        [json.dumps(question)],
        "this machine could not be measured",
        {**environment, "OMP_NUM_THREADS": "1"},
        hear,
    )
    return folder


def _is_damaged(folder: Path, machine: Machine) -> bool:
    """Whether a profile is there that cannot be read as one."""
    if not folder.exists():
        return False
    try:
        load_profile(NAME, folder)
        return not (folder / NAME / f"{machine.gpu_type}.json").exists()
    except UnprofiledConfiguration:
        return True


def _is_worth_measuring(folder: Path, machine: Machine) -> bool:
    file = read_type_file(folder / NAME / f"{machine.gpu_type}.json")
    rows = {(part, b): row for (part, _, b), row in rows_of(file).items()}
    return worth_measuring(rows, machine.cores, os.getloadavg()[0])


def measured_peak(folder: Path) -> float | None:
    """FLOP/s of one core in a large product, as it was measured; None if it was not."""
    for file in folder.glob(f"*/{ALIAS}-*.json"):
        peak = read_type_file(file).provenance.get("peak_flops_s")
        return float(peak) if peak else None
    return None


def copy_for(folder: Path, target: Path, model: str, machine: Machine, ranks: int) -> Path:
    """A copy of a profile for a model of that name and shape, as a folder of profiles.

    Each of so many ranks has its share of the machine's memory.

    Raises:
        ProcessFailed: the profile is damaged.
    """
    home = target / model
    file = home / f"{machine.gpu_type}.json"
    try:
        shutil.copytree(folder / NAME, home)
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        content["gpu_type"]["memory_bytes"] = machine.memory_bytes // ranks
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ProcessFailed(
            f"the measured profile in {folder} is damaged ({reason_of(error)}); delete that "
            "folder, and this machine is measured again",
            code="Damaged",
        ) from None
    content["model"] = model
    file.write_text(json.dumps(content), encoding="utf-8")
    return target
