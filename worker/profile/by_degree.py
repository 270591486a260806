"""Measure layers of a GPU type at each TP degree, and write its profile: `heddle profile`.

Invariant: what is written says `origin: measured` with hardware, versions and date; what could not
be measured here is named, never made up.
"""

from __future__ import annotations

import datetime
import functools
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from planner.cores import usable_cores
from planner.model.shape import ModelShape
from planner.model.workload import GpuWire, Precision
from planner.profiles.entries import LinkCost
from planner.profiles.generator import RESERVE_BYTES, RESERVE_SHARE
from planner.profiles.profile import PROFILES, load_profile
from worker.device.choice import device_of
from worker.device.cuda import begin_process
from worker.device.environment import environment_of
from worker.error_kinds import is_out_of_memory
from worker.errors import WorkerError
from worker.profile.bench import Bench
from worker.profile.files import make_folder, write_layers, write_links
from worker.profile.layers import check_model, measure_layer, parts_of
from worker.profile.links import inside_node
from worker.profile.rows import DoesNotFit, Key, Part, Row, RowKey, measured_rows
from worker.profile.types import measure_type

TP_DEGREES = (1, 2, 4, 8, 16)  # that a refusal offers
Left = Callable[[int, Sequence[int]], None]
Told = Callable[[int, int, str], None]  # rows measured, of how many, and which comes next


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured, and where its profile goes.

    Attributes:
        folder: of profiles, with a folder for each model.
        model: whose layers are measured.
        gpu_type: name of the devices of this machine.
        device: `cuda` or `cpu`.
        repeats: of each measurement; the smallest counts.
        wire: between GPUs.
    """

    folder: Path
    model: ModelShape
    gpu_type: str
    device: str
    repeats: int
    wire: GpuWire

    @property
    def home(self) -> Path:
        """Folder of the model's profile."""
        return self.folder / self.model.name

    @property
    def devices(self) -> int:
        """Devices of this machine: GPUs, or cores that a process each may use."""
        return torch.cuda.device_count() if self.device == "cuda" else usable_cores()

    def provenance(self) -> dict[str, Any]:
        """Hardware, versions and date of a measurement now."""
        is_cuda = self.device == "cuda"
        name = torch.cuda.get_device_name() if is_cuda else platform.processor() or "CPU"
        return {
            "hardware": f"{name}, {self.device}",
            "versions": {"torch": torch.__version__, "cuda": torch.version.cuda or "none"},
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "repeats": self.repeats,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes at which layers are measured.

    Attributes:
        degrees: of TP.
        micro_batches: samples of each.
        sequence_length: tokens of a sample.
        precision: of weights and activations.
        max_tiling: largest EP x ETP of experts.
    """

    degrees: tuple[int, ...]
    micro_batches: tuple[int, ...]
    sequence_length: int
    precision: Precision
    max_tiling: int


@dataclass(frozen=True, slots=True)
class Written:
    """What was written.

    Attributes:
        path: of the file of the GPU type.
        entries: in it.
        links_origin: `measured` or `assumed`.
    """

    path: Path
    entries: int
    links_origin: str


def measure_layers(subject: Subject, sizes: Sizes, left: Left, told: Told) -> Written:
    """Measure layers, and links between ranks of a TP group; add both to the model's profile.

    Args:
        subject: what is measured.
        sizes: at which.
        left: hears of a degree and the micro-batches that do not fit in memory at it.
        told: hears of each row before it is measured; one that is measured again counts as done.

    Raises:
        WorkerError: a degree is impossible here, nothing fits, or the folder cannot be written.
        InvalidWorkload: the worker does not have the model's layers.
        UnprofiledConfiguration: the profile there is of another shape, length, precision or wire.
    """
    check_model(subject.model)
    _check_degrees(subject, sizes.degrees)
    make_folder(subject.home)
    bench = _bench(subject)
    layers: dict[RowKey, Row] = {}
    rings: dict[int, LinkCost] = {}
    message: LinkCost | None = None
    group_bytes = 0
    parts = sum(len(parts_of(subject.model, n, sizes.max_tiling)) for n in sizes.degrees)
    count = _Count(told, parts * len(sizes.micro_batches))
    for degree in sizes.degrees:
        if degree > 1:
            count.say(f"TP {degree}: messages between devices")
            found = inside_node(subject.device, degree, repeats=subject.repeats, wire=subject.wire)
            message, rings[degree] = found.message, found.ring
            group_bytes = max(group_bytes, found.group_bytes)
        ring = rings.get(degree)
        rows = _rows_at(bench, subject.model, sizes, degree, ring, left, count)
        layers |= {(part, degree, b): row for (part, b), row in rows.items()}
    memory, reserve = _memory(subject)
    head = {
        "model": subject.model.name,
        "shape": subject.model.cost_digest,
        "sequence_length": sizes.sequence_length,
        "precision": sizes.precision,
        "provenance": subject.provenance(),
    }
    path = subject.home / f"{subject.gpu_type}.json"
    entry = measure_type(
        bench,
        subject.model,
        subject.gpu_type,
        sizes.precision,
        memory_bytes=memory,
        reserve_bytes=reserve,
    )
    entries = write_layers(path, head, replace(entry, group_bytes=group_bytes), layers)
    origin = write_links(
        path.parent,
        subject.gpu_type,
        subject.provenance(),
        message=message,
        rings=rings,
        wire=subject.wire,
    )
    return Written(path, entries, origin)


def _bench(subject: Subject) -> Bench:
    if subject.device == "cpu":
        torch.set_num_threads(1)
    else:
        os.environ.update(environment_of("cuda"))  # before the first call of CUDA
        begin_process()
    bench = Bench(device_of(subject.device), subject.repeats)
    bench.device.check(subject.gpu_type)
    return bench


class _Count:
    """Counts rows for whoever waits."""

    def __init__(self, told: Told, rows: int) -> None:
        self._told, self._rows = told, rows
        self._begun: set[tuple[int, Part, int]] = set()

    def row(self, degree: int, part: Part, micro_batch: int) -> None:
        """This row comes next."""
        row = (degree, part, micro_batch)
        again = ", again" if row in self._begun else ""
        self.say(f"TP {degree}: {part}, micro-batch {micro_batch}{again}")
        self._begun.add(row)

    def say(self, what: str) -> None:
        """This comes next."""
        self._told(len(self._begun), self._rows, what)


def _rows_at(
    bench: Bench,
    model: ModelShape,
    sizes: Sizes,
    degree: int,
    ring: LinkCost | None,
    left: Left,
    count: _Count,
) -> dict[Key, Row]:
    """The rows of one TP degree, whose all-reduce is `ring`."""

    def all_reduce_s(num_bytes: float) -> float:
        return ring.seconds(2 * (degree - 1) / degree * num_bytes) if ring else 0.0

    def measure(part: Part, micro_batch: int) -> Row:
        bench.spread = 0.0
        try:
            cost = measure_layer(
                bench,
                model,
                part,
                degree,
                micro_batch,
                sizes.sequence_length,
                sizes.precision,
                all_reduce_s,
            )
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise DoesNotFit from error
        return Row(cost, bench.spread, os.getloadavg()[0])

    found, too_large = measured_rows(
        measure,
        parts_of(model, degree, sizes.max_tiling),
        sorted(sizes.micro_batches),
        time.monotonic,
        math.inf,
        functools.partial(count.row, degree),
    )
    if not found:
        raise WorkerError(
            f"a layer of {model.name} at TP {degree} does not fit on this device; "
            "measure a smaller micro-batch, a shorter sequence or a larger TP degree",
            field="micro_batch",
            code="OutOfRange",
        )
    if too_large:
        left(degree, too_large)
    return found


def _check_degrees(subject: Subject, degrees: Sequence[int]) -> None:
    allows, name = subject.model.allows_tp, subject.model.name
    for degree in degrees:
        if not allows(degree):
            raise WorkerError(
                f"TP {degree} does not divide the heads, ffn and vocabulary of {name}; {{field}} "
                f"may have {', '.join(str(n) for n in TP_DEGREES if allows(n))}",
                field="tp",
                code="OutOfRange",
            )
        if subject.device == "cuda" and degree > subject.devices:
            raise WorkerError(
                f"TP {degree} needs {degree} devices, and this machine has {subject.devices}; "
                "measure it on a larger node",
                code="OutOfRange",
            )


def _memory(subject: Subject) -> tuple[int, int]:
    """(physical bytes, reserve): of the device; on CPU those that the type has in its profile."""
    if subject.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        return total, round(RESERVE_SHARE * total) + RESERVE_BYTES
    if (PROFILES / subject.model.name / f"{subject.gpu_type}.json").exists():
        known = load_profile(subject.model.name).types[subject.gpu_type]
        return known.memory_bytes, known.reserve_bytes
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total, total // 2
