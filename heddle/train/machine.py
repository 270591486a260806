"""This machine as a place to train: its GPUs, or its processor as a GPU type, `cpu-<processor>`.

Invariant: pure but for what the system says of itself.
Source: Linux' /proc and control groups.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, replace
from pathlib import Path

from heddle_operator.apis.errors import Mistake
from heddle_operator.inventory.accelerators import canonical
from planner.cores import GROUPS, usable_cores
from worker.device.gpus import Driver, check_gpus
from worker.errors import DeviceUnusable

ALIAS = "cpu"  # in files of nodes and events: this machine's processor, whatever its name
MOST_NAME = 32  # characters of the processor in the type's name
MOST_RANKS = 16  # unless the user asks for more: each holds its own copy of Python and torch
_NOISE = re.compile(r"\((r|tm|c)\)|\bcpu\b|\bprocessor\b|\b\d+-core\b|@.*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources of this machine.

    Attributes:
        processor: its name as the system says it.
        cores: that this process may use.
        memory_bytes: that this process may use.
        gpu: type of its GPUs, where these train; "": the processor does.
        gpus: that train.
    """

    processor: str
    cores: int
    memory_bytes: int
    gpu: str = ""
    gpus: int = 0

    @property
    def gpu_type(self) -> str:
        """`h100`, or `cpu-amd-epyc`: what stages and nodes of plans call it."""
        return self.gpu or f"{ALIAS}-{slug(self.processor)}"

    @property
    def usual_ranks(self) -> int:
        """One rank for each GPU, or for each core within limits."""
        return self.gpus or max(1, min(self.cores, MOST_RANKS))

    def on_gpus(self, driver: Driver) -> Machine:
        """The same where its GPUs train, all of the type of the first; without any as it is."""
        try:
            found = driver.gpus()
        except DeviceUnusable:  # which `why_no_gpus` tells
            return self
        if not found or found[0].fault:
            return self
        return replace(self, gpu=canonical(found[0].name.replace(" ", "-")), gpus=len(found))


def this_machine(proc: Path = Path("/proc"), cgroup: Path = GROUPS) -> Machine:
    """The machine as the system reports it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        _processor(proc / "cpuinfo"),
        usable_cores(cgroup),
        min(total, _limit(cgroup / "memory.max", total)),
    )


def slug(name: str) -> str:
    """A name as a label: small letters, digits and dashes."""
    words = re.sub(r"[^a-z0-9]+", "-", _NOISE.sub(" ", name).lower()).strip("-")
    return words[:MOST_NAME].strip("-") or "unknown"


def _processor(file: Path) -> str:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _limit(file: Path, otherwise: int) -> int:
    try:
        return int(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no cgroup, or "max"
        return otherwise


def why_no_gpus(driver: Driver, ranks: int, option: str | None) -> list[Mistake]:
    """A mistake if the ranks of a node cannot have a GPU each.

    Args:
        driver: of this machine.
        ranks: of the node with most.
        option: value of `--device`; None: the job's own field asks for GPUs.
    """
    try:
        check_gpus(driver, ranks)
    except DeviceUnusable as error:
        if option is None:
            field = "spec.worker.device"
            return [Mistake(f"{field} CUDA: {error}", error.code, field)]
        return [Mistake(f"--device {option}: {error}", error.code, "device")]
    return []
