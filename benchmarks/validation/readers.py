"""Readers of plans that others measured: vTrain's tables and Sailor's files.

vTrain: one plan a row, uniform TP x DP x PP on one GPU type.  Megatron numbers ranks through TP,
then DP, then PP, so that neighbouring stages sit on other nodes as soon as TP x DP fills one.
Sailor: one JSON file a plan, stages with the GPUs of every replica.  Layers are counted per stage,
because some files list an index twice; the first one is the embedding and the last one the head.
Source: VIA-Research/vTrain, data (MIT); eth-easl/sailor, sailor/Planner/simulations/validation
(MIT).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from benchmarks.validation.facts import SetFacts
from planner.cluster.composition import Composition, Node
from planner.cluster.hardware import GpuHardware, Ring
from planner.errors import InvalidMeasurements
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.profiles.generator import generate
from planner.profiles.profile import Profile
from planner.wording import reason_of

TYPES = {  # as Sailor writes them
    "A100-40": "a100-40",
    "A100-80": "a100-80",
    "GH-96": "gh200-96",
    "RTX-2080": "rtx-2080",
    "RTX-3090": "rtx-3090",
    "Titan-RTX": "titan-rtx",
    "V100-16": "v100-16",
}
Hardware = Mapping[str, GpuHardware]
Number = Annotated[int, Field(gt=0)]
Group = tuple[int, int, str]  # GPUs, global batch, model: its plans compete


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """One measured plan."""

    label: str  # the line of its table, or nothing
    plan: Plan  # what ran
    workload: Workload  # what it trained
    composition: Composition  # where
    profile: Profile  # the modelled one of its hardware
    seconds: float  # of an iteration
    # the peak of any GPU; None where none was measured, or it is not valid
    memory_bytes: int | None
    group: Group  # plans of one group had equal GPUs, batch and model, so that one may be picked
    fitted: bool = False  # whether it is in the half that constants are fitted on


class Row(BaseModel):
    """A row of a table of vTrain; the aliases are its columns."""

    gpus: Number = Field(alias="# GPUs")
    batch: Number = Field(alias="global batch")
    micro_batch: Number = Field(alias="micro batch")
    hidden: Number = Field(alias="hidden size")
    heads: Number = Field(alias="attention heads")
    layers: Number = Field(alias="# layers")
    length: Number = Field(alias="sequence length")
    tp: Number = Field(alias="tensor parallelism")
    dp: Number = Field(alias="data parallelism")
    pp: Number = Field(alias="pipeline parallelism")
    ms: float = Field(alias="iteration time (ms)", gt=0, allow_inf_nan=False)


COLUMNS = tuple(str(field.alias) for field in Row.model_fields.values())


def read_row_file(path: Path, facts: SetFacts, hardware: Hardware) -> Iterator[MeasuredPlan]:
    """The plan of every row of a table of vTrain.

    Raises:
        InvalidMeasurements: a column is missing, or a value is no number.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        lacking = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if lacking:
            raise InvalidMeasurements(
                f"{path} lacks the column {lacking[0]!r}; expected are {', '.join(COLUMNS)}"
            )
        for line, values in enumerate(reader, start=2):
            try:
                row = Row.model_validate(values)
            except ValidationError:
                raise InvalidMeasurements(
                    f"{path}, line {line}: expected whole numbers and a time in ms, every number "
                    f"must be above 0, found {values}"
                ) from None
            yield _row_plan(f":{line}", row, facts, hardware)


def _row_plan(label: str, row: Row, facts: SetFacts, hardware: Hardware) -> MeasuredPlan:
    gpu = facts.gpu(facts.gpu_type, hardware)
    machines = max(1, -(-row.tp // gpu.node_gpus))
    if machines > 1:  # a TP group over machines is one entry with the ports of all of them
        nic = gpu.node_nic
        wide = Ring(nic.latency_s, nic.bandwidth_bytes_per_s * machines)
        rings = {row.tp: nic, **gpu.rings}
        gpu = replace(gpu, node_gpus=machines * gpu.node_gpus, node_nic=wide, rings=rings)
    model = facts.shape(hidden=row.hidden, heads=row.heads, layers=row.layers)
    rounds = -(-row.batch // (row.dp * row.micro_batch))
    samples = rounds * row.dp * row.micro_batch
    workload = Workload(
        model=model,
        global_batch=samples,
        sequence_length=row.length,
        precision=facts.priced_precision,
        memory="paper",
    )
    plan, composition = _megatron(row, gpu, rounds, facts.recompute)
    profile = generate(model, row.length, workload.precision, (gpu,))
    group = (row.gpus, row.batch, f"{model.name}-{row.length}")
    return MeasuredPlan(
        label=label,
        plan=plan,
        workload=workload,
        composition=composition,
        profile=profile,
        seconds=row.ms / 1e3,
        memory_bytes=None,
        group=group,
    )


def _megatron(row: Row, gpu: GpuHardware, rounds: int, recompute: str) -> tuple[Plan, Composition]:
    tp, dp, pp = row.tp, row.dp, row.pp
    layers = [row.layers // pp + (s < row.layers % pp) for s in range(pp)]
    stages = tuple(
        Stage(gpu_type=gpu.name, tp=tp, layers=count, recompute=recompute) for count in layers
    )
    template = FilledTemplate(stages, row.micro_batch, (rounds,) * dp)
    placement = []
    for replica in range(dp):
        for stage in range(pp):
            node, slot = divmod(tp * (replica + dp * stage), gpu.node_gpus)
            gpus = tuple(range(slot, slot + tp))
            placement.append(PlacedStage(0, replica, stage, f"node-{node:03}", gpus))
    names = sorted({placed.node for placed in placement})
    composition = Composition(
        tuple(Node(name=name, gpu_type=gpu.name, gpus=gpu.node_gpus) for name in names)
    )
    return Plan((template,), tuple(placement)), composition


def read_plan_file(path: Path, facts: SetFacts, hardware: Hardware) -> Iterator[MeasuredPlan]:
    """The one plan of a file of Sailor.

    Raises:
        InvalidMeasurements: the file is not such a plan.
    """
    try:
        yield _file_plan(json.loads(path.read_text(encoding="utf-8")), facts, hardware)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        what = f"the key {error} is missing" if isinstance(error, KeyError) else reason_of(error)
        raise InvalidMeasurements(f"{path} is not a plan of Sailor's validation: {what}") from None


def _file_plan(data: Any, facts: SetFacts, hardware: Hardware) -> MeasuredPlan:
    pipeline = data["pipeline_list"][0]
    counts = [len(layers) for layers in pipeline["layers_per_stage"]]
    model = facts.shape(layers=sum(counts) - 2)
    counts[0] -= 1
    counts[-1] -= 1
    stages = pipeline["tmp_per_stage"]  # [stage][replica]: machines, TP degree
    replicas = sorted(
        tuple((TYPES[stage[r][0][0][0]], int(stage[r][1])) for stage in stages)
        for r in range(len(stages[0]))
    )
    b, batch = int(data["mbs"]), int(data["gbs"])
    rounds = -(-batch // (b * len(replicas)))
    samples = rounds * b * len(replicas)
    workload = Workload(
        model=model,
        global_batch=samples,
        sequence_length=facts.sequence_length,
        precision=facts.priced_precision,
        memory="paper",
    )
    plan, composition = _on_own_nodes(replicas, counts, b, rounds, facts.recompute)
    kinds = sorted({kind for row in replicas for kind, _ in row})
    gpus = tuple(facts.gpu(name, hardware) for name in kinds)
    profile = generate(model, facts.sequence_length, workload.precision, gpus)
    memory = int(data.get("max_mem") or 0) or None
    group = (plan.gpus, batch, model.name)
    seconds = float(data["real"])
    return MeasuredPlan(
        label="",
        plan=plan,
        workload=workload,
        composition=composition,
        profile=profile,
        seconds=seconds,
        memory_bytes=memory,
        group=group,
    )


def _on_own_nodes(
    replicas: list[tuple[tuple[str, int], ...]],
    counts: list[int],
    b: int,
    rounds: int,
    recompute: str,
) -> tuple[Plan, Composition]:
    """Replicas of the same types are one template; every TP group has a node of its own."""
    templates: list[FilledTemplate] = []
    placement: list[PlacedStage] = []
    nodes: list[Node] = []
    for row in dict.fromkeys(replicas):
        stages = tuple(
            Stage(gpu_type=kind, tp=tp, layers=count, recompute=recompute)
            for (kind, tp), count in zip(row, counts, strict=True)
        )
        alike = replicas.count(row)
        for replica in range(alike):
            for s, (kind, tp) in enumerate(row):
                name = f"node-{len(nodes):03}"
                nodes.append(Node(name=name, gpu_type=kind, gpus=tp))
                placement.append(PlacedStage(len(templates), replica, s, name, tuple(range(tp))))
        templates.append(FilledTemplate(stages, b, (rounds,) * alike))
    return Plan(tuple(templates), tuple(placement)), Composition(tuple(nodes))
