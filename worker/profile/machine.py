"""Measure this machine's processor for one model, within a minute: the profile of `heddle train`.

Run as `python -m worker.profile.machine JSON`, where the JSON is a `Question`: each line that it
prints is JSON, `{"done": 3, "of": 16, "what": "block, micro-batch 4"}`, and an error is the line
of a `Failure`.
A folder that is there already is measured again in its rows in doubt; the smaller time wins.
Invariant: the folder is there with all of its files or not at all, and a file is replaced as a
whole, so that a measurement that was interrupted is never read.  Micro-batches for which the time
did not suffice are left out, and so out of every plan.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from planner.errors import HeddleError
from planner.failure import Failure
from planner.model.shape import ModelShape
from planner.profiles.schema import read_type_file
from worker.device.device import CPU
from worker.errors import WorkerError
from worker.profile.bench import Bench
from worker.profile.files import rows_of, write_layers, write_links
from worker.profile.layers import DTYPES, check_model, measure_layer, parts_of
from worker.profile.links import inside_node
from worker.profile.rows import Part, Row, RowKey, again, doubtful, is_busy, measured_rows
from worker.profile.types import measure_type

MICRO_BATCHES = (1, 2, 4, 8, 16)
REPEATS = 2  # of a row each time that it is measured
LAYERS_S = 35.0  # of the minute; links start processes, which takes the rest
LINK_SIZES = tuple(1 << power for power in range(10, 25, 2))  # 1 KiB to 16 MiB
LINK_REPEATS = 6
MOST_RING = 8
SQUARE = 1024  # rows and columns of the products that say what the processor can do
PEAK_KEY = "peak_flops_s"
FORMAT = 2  # of the file: with spread and load by row


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Subject of a measurement.

    Attributes:
        model: `ModelShape.to_json`.
        gpu_type: the processor's name as a GPU type.
        processor: its name as the system says it.
        sequence_length: tokens a sample.
        precision: of weights and activations.
        cores: of this machine; each runs one rank.
        memory_bytes: of this machine.
        folder: that is made, in the form of `profiles/`.
    """

    model: dict[str, Any]
    gpu_type: str
    processor: str
    sequence_length: int
    precision: str
    cores: int
    memory_bytes: int
    folder: str


def measure(question: Question, say: Callable[[int, int, str], None]) -> None:
    """Measure layers, optimizer, links and the processor's peak; write the folder.

    Args:
        question: what is measured.
        say: gets parts done, parts in all, and what comes next.

    Raises:
        InvalidWorkload: the worker does not have the model's layers.
        WorkerError: the folder cannot be written.
    """
    model = ModelShape.from_json(question.model)
    check_model(model)
    torch.set_num_threads(1)  # as a rank has
    file = Path(question.folder) / model.name / f"{question.gpu_type}.json"
    if file.exists():
        _measure_again(question, model, file, say)
        return
    importlib.import_module("worker.rank.process")  # what a rank holds before it trains
    reserve = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bench = Bench(CPU, REPEATS)
    parts = len(MICRO_BATCHES) * len(parts_of(model, ways=question.cores)) + 3
    layers, left_out = _layers(question, model, bench, lambda done, what: say(done, parts, what))
    say(parts - 3, parts, "optimizer")
    entry = measure_type(
        bench,
        model,
        question.gpu_type,
        question.precision,
        memory_bytes=question.memory_bytes,
        reserve_bytes=reserve,
    )
    say(parts - 2, parts, "product of matrices")
    peak = _peak_flops_s(bench, DTYPES[question.precision])
    say(parts - 1, parts, "messages between two processes")
    pair = inside_node("cpu", 2, LINK_SIZES, LINK_REPEATS)
    message, rings = pair.message, {2: pair.ring}
    if question.cores >= 4:
        size = min(MOST_RING, 1 << question.cores.bit_length() - 1)
        rings[size] = inside_node("cpu", size, LINK_SIZES, LINK_REPEATS).ring
    provenance = {
        "format": FORMAT,
        "hardware": f"{question.processor}, one core a rank, each measured alone",
        "versions": {"torch": torch.__version__},
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "repeats": REPEATS,
        PEAK_KEY: peak,
        "left_out": left_out,
    }
    head = {
        "model": model.name,
        "sequence_length": question.sequence_length,
        "precision": question.precision,
        "provenance": provenance,
    }
    with _whole_folder(Path(question.folder)) as folder:
        home = folder / model.name
        write_layers(home / f"{question.gpu_type}.json", head, entry, layers)
        write_links(
            home, question.gpu_type, provenance, message=message, rings=rings, network=message
        )
    say(parts, parts, "done")


def _layers(
    question: Question, model: ModelShape, bench: Bench, say: Callable[[int, str], None]
) -> tuple[dict[RowKey, Row], str]:
    """The entries, smallest micro-batch first, and which were left out and why."""
    parts = parts_of(model, ways=question.cores)
    wanted, done = len(MICRO_BATCHES) * len(parts), 0

    def next_part(part: Part, b: int) -> None:
        nonlocal done
        say(min(done, wanted), f"{part}, micro-batch {b}" + (", again" if done >= wanted else ""))
        done += 1

    found, rest = measured_rows(
        _measure(question, model, bench),
        parts,
        MICRO_BATCHES,
        time.perf_counter,
        LAYERS_S,
        next_part,
    )
    left = f"micro-batches {', '.join(map(str, rest))}: they take too long to measure"
    return _on_one_rank(found), left if rest else ""


def _measure(question: Question, model: ModelShape, bench: Bench) -> Callable[[Part, int], Row]:
    """Measurement of one row."""

    def measure(part: Part, b: int) -> Row:
        bench.spread = 0.0
        cost = measure_layer(
            bench, model, part, 1, b, question.sequence_length, question.precision, _no_group
        )
        return Row(cost, bench.spread, os.getloadavg()[0])

    return measure


def _measure_again(
    question: Question, model: ModelShape, file: Path, say: Callable[[int, int, str], None]
) -> None:
    """Measure the rows of a file that are in doubt; everything else of it stays."""
    kept = json.loads(file.read_text(encoding="utf-8"))
    rows = {(part, b): row for (part, _, b), row in rows_of(read_type_file(file)).items()}
    bench = Bench(CPU, REPEATS)
    until_s = time.perf_counter() + LAYERS_S
    busy = {key for key, row in rows.items() if is_busy(row.load, question.cores)}
    parts, done = len(doubtful(rows) | busy), 0

    def next_part(part: Part, b: int) -> None:
        nonlocal done
        say(min(done, parts), parts, f"{part}, micro-batch {b}, again")
        done += 1

    measure = _measure(question, model, bench)
    again(rows, measure, time.perf_counter, until_s, next_part, frozenset(busy))
    head = {name: kept[name] for name in ("model", "sequence_length", "precision", "provenance")}
    head["provenance"] = {**kept["provenance"], "format": FORMAT}
    write_layers(file, head, read_type_file(file).gpu_type, _on_one_rank(rows))
    say(parts, parts, "done")


def _on_one_rank(rows: Mapping[tuple[Part, int], Row]) -> dict[RowKey, Row]:
    return {(part, 1, b): row for (part, b), row in rows.items()}


def _no_group(num_bytes: float) -> float:
    """Of TP 1: nothing is summed over a group."""
    del num_bytes
    return 0.0


def _peak_flops_s(bench: Bench, dtype: torch.dtype) -> float:
    """Peak of one core in a large product: a measured stand-in for a data sheet."""
    left, right = torch.randn(2, SQUARE, SQUARE).to(dtype)
    return 2.0 * SQUARE**3 / bench.seconds(lambda: left @ right)


@contextlib.contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name when all is written."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".measuring-") as made:
            whole = Path(made) / "whole"
            whole.mkdir()
            yield whole
            with contextlib.suppress(FileExistsError):
                if not folder.exists():  # else somebody else has measured the same meanwhile
                    whole.rename(folder)
    except OSError as error:
        raise WorkerError(
            f"the profile cannot be kept in {folder.parent}: {error.strerror}; set XDG_CACHE_HOME "
            "to a folder that can be written",
            code="Unwritable",
        ) from None


def main(arguments: list[str]) -> int:
    """Answer one question; the exit status."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # DeepSpeed prints when it is imported

    def say(done: int, parts: int, what: str) -> None:
        channel.write(json.dumps({"done": done, "of": parts, "what": what}) + "\n")
        channel.flush()

    try:
        measure(Question(**json.loads(arguments[0])), say)
    except HeddleError as error:
        sys.stderr.write(f"{Failure.of(error).to_line()}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
