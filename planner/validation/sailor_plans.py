"""Sailor's measured plans: one JSON file each, stages with the GPUs of every replica.

Layers are counted per stage, because some files list an index twice; the first layer is the
embedding and the last the head.  Replicas whose stages have the same types are one template.
Source: eth-easl/sailor, sailor/Planner/simulations/validation (MIT).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.cluster.composition import Composition, Node
from planner.cluster.hardware import GpuHardware
from planner.errors import InvalidMeasurements
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.validation.measured_case import MeasuredCase, profile_of
from planner.validation.set_facts import SetFacts

TYPES = {
    "A100-40": "a100-40",
    "A100-80": "a100-80",
    "GH-96": "gh200-96",
    "RTX-2080": "rtx-2080",
    "RTX-3090": "rtx-3090",
    "Titan-RTX": "titan-rtx",
    "V100-16": "v100-16",
}
Group = tuple[str, int]  # GPU type, TP degree


def read_plan_file(
    path: Path, facts: SetFacts, hardware: Mapping[str, GpuHardware]
) -> Iterator[tuple[str, MeasuredCase]]:
    """The one plan of a file.

    Raises:
        InvalidMeasurements: the file is not such a plan.
    """
    try:
        data = json.loads(path.read_text())
        yield "", _case(data, facts, hardware)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        what = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise InvalidMeasurements(f"{path} is not a plan of Sailor's validation: {what}") from None


def _case(data: Any, facts: SetFacts, hardware: Mapping[str, GpuHardware]) -> MeasuredCase:
    pipeline = data["pipeline_list"][0]
    counts = [len(layers) for layers in pipeline["layers_per_stage"]]
    blocks = sum(counts) - 2
    counts[0] -= 1
    counts[-1] -= 1
    groups = _replicas(pipeline["tmp_per_stage"])
    b, batch = int(data["mbs"]), int(data["gbs"])
    rounds = -(-batch // (b * len(groups)))
    gpus = tuple(
        facts.gpu(name, hardware) for name in sorted({kind for row in groups for kind, _ in row})
    )
    model = facts.shape(blocks=blocks)
    workload = Workload(
        model,
        rounds * b * len(groups),
        facts.sequence_length,
        facts.priced_precision,  # type: ignore[arg-type]
    )
    profile = profile_of(model, facts.sequence_length, facts.priced_precision, gpus)
    plan, composition = _placed(groups, counts, b, rounds, facts.recompute)
    memory = data.get("max_mem")
    used = sum(tp for row in groups for _, tp in row)
    return MeasuredCase(
        plan,
        workload,
        composition,
        profile,
        float(data["real"]),
        int(memory) if memory else None,
        (used, batch, model.name),
    )


def _replicas(stages: Any) -> list[tuple[Group, ...]]:
    """The (type, TP) of every stage, replica by replica, sorted."""
    rows = []
    for replica in range(len(stages[0])):
        row = []
        for stage in stages:
            machines, tp = stage[replica]
            row.append((TYPES[machines[0][0]], int(tp)))
        rows.append(tuple(row))
    return sorted(rows)


def _placed(
    groups: list[tuple[Group, ...]], counts: list[int], b: int, rounds: int, recompute: str
) -> tuple[Plan, Composition]:
    """A template for each distinct row of groups; every TP group has a node of its own."""
    templates: list[FilledTemplate] = []
    placement: list[PlacedStage] = []
    nodes: list[Node] = []
    for row in dict.fromkeys(groups):
        stages = tuple(
            Stage(kind, tp, count, recompute) for (kind, tp), count in zip(row, counts, strict=True)
        )
        replicas = groups.count(row)
        for replica in range(replicas):
            for s, (kind, tp) in enumerate(row):
                name = f"node-{len(nodes):03}"
                nodes.append(Node(name, kind, tp))
                placement.append(PlacedStage(len(templates), replica, s, name, tuple(range(tp))))
        templates.append(FilledTemplate(stages, b, (rounds,) * replicas))
    return Plan(tuple(templates), tuple(placement)), Composition(tuple(nodes))
