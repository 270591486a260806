"""A plan: several filled templates placed on nodes, as data.

Invariant: a plan that passes `faults` tiles the model, the global batch and its nodes exactly once;
everything else in Heddle trusts that.  A plan holds all decisions (replicas, micro-batches,
placement): nothing is derived again elsewhere.
Source: Heddle, sections 5.1 and 5.3 (template, fill); JSON keys are those of `heddle plan --output
json`.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from planner.cluster.composition import Composition
from planner.errors import InvalidPlan
from planner.model.workload import Workload
from planner.plans.schema import Count, Index, Recomputed, Whole, check_spelling, read_plan
from planner.wording import counted, joined


def joins_replicas(tp: int, ep: int, etp: int) -> bool:
    """Whether a block of EP x ETP GPUs reaches beyond the TP group of one replica."""
    return tp % (ep * etp) != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline step: `layers` blocks on a TP group of `tp` GPUs of one type.

    The embedding joins the first stage of a template, the head its last; neither is counted in
    `layers`.
    """

    gpu_type: str  # device type
    tp: Count  # TP degree
    layers: Whole  # blocks
    recompute: Recomputed = "none"  # what its backward pass computes again: none, selective or full
    ep: Count = 1  # of a MoE stage, the degree over which whole experts are spread
    etp: Index = 0  # of a MoE stage, the degree over which each expert is cut; 0: the TP degree

    @property
    def expert_tp(self) -> int:
        """The degree over which each expert is cut."""
        return self.etp or self.tp

    @property
    def is_tiled(self) -> bool:
        """Whether its experts are spread in another way than TP cuts the rest."""
        return (self.ep, self.expert_tp) != (1, self.tp)

    @property
    def joins_replicas(self) -> bool:
        """Whether tokens of one replica visit experts of another."""
        return joins_replicas(self.tp, self.ep, self.expert_tp)

    def to_json(self) -> dict[str, Any]:
        """The stage as a row of `Plan.to_json`; its tiling only where it has one."""
        row = {name: getattr(self, name) for name in ("gpu_type", "tp", "layers", "recompute")}
        return row | {"ep": self.ep, "etp": self.expert_tp} if self.is_tiled else row

    def __str__(self) -> str:
        experts = f" ep{self.ep} etp{self.expert_tp}" if self.is_tiled else ""
        return f"{self.gpu_type} tp{self.tp}{experts} x {self.layers}"


@dataclass(frozen=True, slots=True)
class FilledTemplate:
    """Ordered stages with their fill."""

    stages: tuple[Stage, ...]  # D stages in pipeline order
    micro_batch: Whole  # b, samples of one micro-batch
    micro_batches: tuple[Whole, ...]  # M_r of each replica; its length is the number of replicas n
    zero: Index = 0  # stage of ZeRO: 1 cuts master weights and moments over the replicas

    @property
    def replicas(self) -> int:
        """n, the DP degree of this template."""
        return len(self.micro_batches)

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return sum(stage.tp for stage in self.stages)

    @property
    def samples(self) -> int:
        """Samples of the global batch that all replicas of this template train."""
        return self.micro_batch * sum(self.micro_batches)

    @property
    def is_tiled(self) -> bool:
        """Whether a stage spreads its experts in another way than TP cuts the rest."""
        return any(stage.is_tiled for stage in self.stages)

    @property
    def is_in_lock_step(self) -> bool:
        """Whether tokens of one replica visit experts of another, so that all go on together."""
        return any(stage.joins_replicas for stage in self.stages)

    def layer_bounds(self) -> tuple[int, ...]:
        """D + 1 cuts of the layer list [embedding, block 1..L, head].

        Stage s holds [cut s, cut s + 1).
        """
        cuts = [0]
        for stage in self.stages:
            cuts.append(cuts[-1] + stage.layers)
        return (0, *(cut + 1 for cut in cuts[1:-1]), cuts[-1] + 2)

    def to_json(self) -> dict[str, Any]:
        """The template as a row of `Plan.to_json`; its stage of ZeRO only where it is not 0."""
        row = {
            "replicas": self.replicas,
            "micro_batch": self.micro_batch,
            "micro_batches": list(self.micro_batches),
            "stages": [stage.to_json() for stage in self.stages],
        }
        return row | {"zero": self.zero} if self.zero else row

    def __str__(self) -> str:
        shape = " > ".join(map(str, self.stages))
        return f"{self.replicas} x [{shape}] b={self.micro_batch}"


@dataclass(frozen=True, slots=True, order=True)
class PlacedStage:
    """Where one stage of one replica runs: a node, and the indices of its GPUs in slot order."""

    template: Index
    replica: Index
    stage: Index
    node: str
    gpus: tuple[Index, ...]


@dataclass(frozen=True)
class Plan:
    """Filled templates and the placement of every stage of every replica."""

    templates: tuple[FilledTemplate, ...]
    placement: tuple[PlacedStage, ...]

    @property
    def gpus(self) -> int:
        """GPUs that the plan uses."""
        return sum(template.gpus * template.replicas for template in self.templates)

    @property
    def gpus_by_type(self) -> Counter[str]:
        """GPUs of each type that the plan uses."""
        found: Counter[str] = Counter()
        for template in self.templates:
            for stage in template.stages:
                found[stage.gpu_type] += stage.tp * template.replicas
        return found

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that the plan uses, sorted."""
        return tuple(sorted({placed.node for placed in self.placement}))

    @cached_property
    def gpus_reached(self) -> Mapping[str, int]:
        """By node: how many of its GPUs, counted from the first, the plan reaches into."""
        found: dict[str, int] = {}
        for placed in self.placement:
            found[placed.node] = max(found.get(placed.node, 0), *(gpu + 1 for gpu in placed.gpus))
        return found

    @property
    def tp_degrees(self) -> frozenset[int]:
        """The TP degrees in use."""
        return frozenset(stage.tp for template in self.templates for stage in template.stages)

    @property
    def zero(self) -> int:
        """The stage of ZeRO, equal in all templates of a plan without faults."""
        return max((template.zero for template in self.templates), default=0)

    def with_zero(self, zero: int) -> Plan:
        """The same plan with another stage of ZeRO."""
        if zero == self.zero:
            return self
        templates = tuple(replace(template, zero=zero) for template in self.templates)
        return replace(self, templates=templates)

    @cached_property
    def digest(self) -> str:
        """16 hex digits that name this plan."""
        text = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data; `Plan.from_json` reads it back to an equal plan."""
        return self._content() | {"digest": self.digest}

    def _content(self) -> dict[str, Any]:
        names = PlacedStage.__slots__
        return {
            "templates": [template.to_json() for template in self.templates],
            "placement": [
                {name: getattr(placed, name) for name in names} | {"gpus": list(placed.gpus)}
                for placed in self.placement
            ],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Plan:
        """Read a plan; further keys (prices, origin) are ignored.

        Raises:
            InvalidPlan: a key is missing, misspelt or has the wrong type, or the stated digest is
                not the plan's own.
        """
        plan = read_plan(data, Plan)
        check_spelling(data["templates"], FilledTemplate)
        for row, template in zip(data["templates"], plan.templates, strict=True):
            check_spelling(row["stages"], Stage)
            if row.get("replicas") not in (None, template.replicas):
                raise InvalidPlan(
                    f"a template has {row['replicas']} replicas and {template.replicas} "
                    f"micro_batches; give one number for each replica",
                    field="micro_batches",
                    code="Contradiction",
                )
        stated = data.get("digest") or plan.digest
        if stated != plan.digest:
            raise InvalidPlan(
                f"the plan says digest {stated} but its content has {plan.digest}, so it was "
                "changed by hand; take its digest out if that was meant",
                field="digest",
                code="Damaged",
            )
        return plan

    def __str__(self) -> str:
        return " | ".join(str(template) for template in self.templates)


def faults(
    plan: Plan, workload: Workload, composition: Composition | None = None
) -> tuple[str, ...]:
    """Every way in which the plan does not tile model, batch or nodes; empty for a good plan."""
    return (*_fill_faults(plan, workload), *_placement_faults(plan, composition))


def _fill_faults(plan: Plan, workload: Workload) -> Iterator[str]:
    model = workload.model
    if not plan.templates:
        yield "the plan has no template"
    stages_of_zero = sorted({template.zero for template in plan.templates})
    if len(stages_of_zero) > 1 or stages_of_zero[-1:] > [1]:
        yield f"its templates have the ZeRO stages {stages_of_zero}; all have 0, or all have 1"
    for index, template in enumerate(plan.templates):
        where = f"template {index}"
        layers = sum(stage.layers for stage in template.stages)
        if layers != model.layers:
            yield f"{where} holds {counted(layers, 'layer')}, the model has {model.layers}"
        if any(stage.layers < 1 for stage in template.stages):
            yield f"{where} has a stage without layers"
        if min((template.micro_batch, *template.micro_batches)) < 1 or not template.replicas:
            yield f"{where} needs micro-batch, replicas and micro-batches of at least 1"
        for s, stage in enumerate(template.stages):
            if not model.allows_tp(stage.tp):
                what = f"the heads, ffn and vocabulary of {model.name}"
                yield f"{where} stage {s} has TP {stage.tp}, which does not divide {what}"
        yield from _tiling_faults(template, workload, where)
    samples = sum(template.samples for template in plan.templates)
    if samples != workload.global_batch:
        yield (
            f"the replicas train {samples} samples a step, the global batch is "
            f"{workload.global_batch}"
        )


def _tiling_faults(template: FilledTemplate, workload: Workload, where: str) -> Iterator[str]:
    name, experts = workload.model.name, workload.model.experts
    stop = 0
    for s, stage in enumerate(template.stages):
        stop += stage.layers
        if not stage.is_tiled:
            continue
        tiling = f"{where} stage {s} has EP {stage.ep} and ETP {stage.expert_tp}"
        devices = template.replicas * stage.tp
        if experts is None:
            yield f"{tiling}, but {name} has no experts"
        elif stop <= experts.dense_blocks:
            without = f"the first {experts.dense_blocks} blocks of {name}"
            yield f"{tiling}, but {without} have no experts"
        elif experts.count % stage.ep or experts.ffn % stage.expert_tp:
            known = f"the {experts.count} experts of width {experts.ffn}"
            yield f"{tiling}, which do not divide {known}"
        elif devices % (stage.ep * stage.expert_tp):
            yield f"{tiling}, whose product does not divide its {devices} GPUs"


def _placement_faults(plan: Plan, composition: Composition | None) -> Iterator[str]:
    wanted = [
        (t, r, s)
        for t, template in enumerate(plan.templates)
        for r in range(template.replicas)
        for s in range(len(template.stages))
    ]
    if [(p.template, p.replica, p.stage) for p in plan.placement] != wanted:
        yield "the placement does not list every (template, replica, stage) once, in order"
        return
    taken: set[tuple[str, int]] = set()
    nodes = {node.name: node for node in composition.nodes} if composition else {}
    for placed in plan.placement:
        stage = plan.templates[placed.template].stages[placed.stage]
        where = f"template {placed.template} replica {placed.replica} stage {placed.stage}"
        if len(placed.gpus) != stage.tp:
            there = counted(len(placed.gpus), "GPU")
            yield f"{where} has TP {stage.tp} but is placed on {there}"
        for gpu in placed.gpus:
            if (placed.node, gpu) in taken:
                yield f"GPU {gpu} of node {placed.node!r} is given twice"
            taken.add((placed.node, gpu))
        node = nodes.get(placed.node)
        if composition is None:
            continue
        if node is None:
            yield f"{where} is placed on node {placed.node!r}, which is not in the composition"
        elif node.gpu_type != stage.gpu_type or max(placed.gpus, default=0) >= node.gpus:
            yield (
                f"{where} asks {stage.gpu_type} GPUs {placed.gpus} of node {node.name!r}, a "
                f"{node.gpu_type} x {node.gpus}"
            )
        elif len({_host_of(gpu, node.hosts) for gpu in placed.gpus}) > 1:
            sizes = " and ".join(map(str, node.hosts))
            yield (
                f"{where} has GPUs {placed.gpus} of node {node.name!r}, whose hosts have {sizes} "
                f"GPUs; a TP group stays in one host"
            )


def _host_of(gpu: int, hosts: Sequence[int]) -> int:
    """The index of the host that a GPU of a node belongs to."""
    return bisect_right(list(accumulate(hosts)), gpu)


def check(plan: Plan, workload: Workload, composition: Composition | None = None) -> Plan:
    """The plan itself if it has no fault.

    Raises:
        InvalidPlan: with the first faults in one sentence, and how many more there are.
    """
    found = faults(plan, workload, composition)
    if found:
        raise InvalidPlan(f"the plan cannot run: {joined(found)}", code="Unsupported")
    return plan
