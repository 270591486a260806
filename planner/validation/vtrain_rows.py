"""vTrain's tables of measured iterations: one plan per row, uniform TP x DP x PP on one GPU type.

Megatron numbers ranks through TP, then DP, then PP, so that neighbouring stages sit on other nodes
as soon as TP x DP fills one.
Source: VIA-Research/vTrain, data (MIT).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from planner.cluster.composition import Composition, Node
from planner.cluster.hardware import GpuHardware, Ring
from planner.errors import InvalidMeasurements
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.validation.measured_case import MeasuredCase, profile_of
from planner.validation.set_facts import SetFacts

COLUMNS = {
    "gpus": "# GPUs",
    "batch": "global batch",
    "micro_batch": "micro batch",
    "hidden": "hidden size",
    "heads": "attention heads",
    "layers": "# layers",
    "length": "sequence length",
    "tp": "tensor parallelism",
    "dp": "data parallelism",
    "pp": "pipeline parallelism",
}
TIME = "iteration time (ms)"


def read_row_file(
    path: Path, facts: SetFacts, hardware: Mapping[str, GpuHardware]
) -> Iterator[tuple[str, MeasuredCase]]:
    """(line, plan) of every row.

    Raises:
        InvalidMeasurements: a column is missing, or a value is no number.
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        lacking = [
            name for name in (*COLUMNS.values(), TIME) if name not in (reader.fieldnames or ())
        ]
        if lacking:
            raise InvalidMeasurements(
                f"{path} lacks the column {lacking[0]!r}; expected are "
                f"{', '.join((*COLUMNS.values(), TIME))}"
            )
        for line, row in enumerate(reader, start=2):
            yield f":{line}", _case(_numbers(path, line, row), facts, hardware)


def _numbers(path: Path, line: int, row: Mapping[str, str]) -> dict[str, float]:
    try:
        numbers = {key: float(int(row[name])) for key, name in COLUMNS.items()}
        numbers["ms"] = float(row[TIME])
    except (TypeError, ValueError):
        raise InvalidMeasurements(
            f"{path}, line {line}: expected whole numbers and a time in ms, found {dict(row)}"
        ) from None
    if min(numbers.values()) <= 0 or not numbers["ms"] < float("inf"):
        raise InvalidMeasurements(f"{path}, line {line}: every number must be above 0")
    return numbers


def _case(
    row: Mapping[str, float], facts: SetFacts, hardware: Mapping[str, GpuHardware]
) -> MeasuredCase:
    n = {key: int(value) for key, value in row.items() if key != "ms"}
    tp, dp, b = n["tp"], n["dp"], n["micro_batch"]
    gpu = facts.gpu(facts.gpu_type, hardware)
    machines = max(1, -(-tp // gpu.node_gpus))
    if machines > 1:  # a TP group over machines is one entry with the ports of all of them
        nic = gpu.node_nic
        wide = Ring(nic.latency_s, nic.bandwidth_bytes_per_s * machines)
        rings = {tp: nic, **gpu.rings}
        gpu = replace(gpu, node_gpus=machines * gpu.node_gpus, node_nic=wide, rings=rings)
    model = facts.shape(n["hidden"], n["heads"], n["layers"])
    profile = profile_of(model, n["length"], facts.priced_precision, (gpu,))
    rounds = -(-n["batch"] // (dp * b))
    workload = Workload(model, rounds * dp * b, n["length"], facts.priced_precision)  # type: ignore[arg-type]
    plan, composition = _megatron(n, gpu, rounds, facts.recompute)
    group = (n["gpus"], n["batch"], f"{model.name}-{n['length']}")
    return MeasuredCase(plan, workload, composition, profile, row["ms"] / 1e3, None, group)


def _megatron(
    n: Mapping[str, int], gpu: GpuHardware, rounds: int, recompute: str
) -> tuple[Plan, Composition]:
    tp, dp, pp = n["tp"], n["dp"], n["pp"]
    layers = [n["layers"] // pp + (s < n["layers"] % pp) for s in range(pp)]
    stages = tuple(Stage(gpu.name, tp, count, recompute) for count in layers)
    template = FilledTemplate(stages, n["micro_batch"], (rounds,) * dp)
    placement = []
    for replica in range(dp):
        for stage in range(pp):
            first = tp * (replica + dp * stage)
            node, slot = divmod(first, gpu.node_gpus)
            gpus = tuple(range(slot, slot + tp))
            placement.append(PlacedStage(0, replica, stage, f"node-{node:03}", gpus))
    names = sorted({placed.node for placed in placement})
    composition = Composition(tuple(Node(name, gpu.name, gpu.node_gpus) for name in names))
    return Plan((template,), tuple(placement)), composition
