"""Small things that many tests need: compositions in one line, plans in one line, random plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from planner.cluster.composition import Composition, Node
from planner.model.catalogue import find_model
from planner.model.experts import Experts
from planner.model.shape import ModelShape
from planner.model.tensors import held_tensors, model_tensors
from planner.model.workload import Workload
from planner.placement.place import can_pack, place, room_of
from planner.plans.pieces import Piece, held_pieces, tensor_pieces
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import Seat
from planner.plans.regions import Cuts, Mask, Regions
from planner.plans.state_rule import PARTS, StateRule
from planner.profiles.profile import Profile, load_profile

MODEL = find_model("tiny-llama")
MOE = ModelShape(
    name="moe",
    layers=3,
    hidden=8,
    heads=4,
    kv_heads=4,
    ffn=8,
    vocab=12,
    experts=Experts(count=4, per_token=2, ffn=8, shared=1, dense_blocks=1),
)
TYPES = {"fast": "demo-fast", "slow": "demo-slow"}


@cache
def demo_profile() -> Profile:
    """The profile of the emulated GPU types."""
    return load_profile("tiny-llama")


def workload(global_batch: int = 32) -> Workload:
    """Tiny LLaMA at the profiled sequence length."""
    return Workload(model=MODEL, global_batch=global_batch, sequence_length=128, memory="paper")


def work_on(
    model: ModelShape | str, global_batch: int, sequence_length: int = 2048, **others: Any
) -> Workload:
    """A workload on a model of the catalogue, or on another one."""
    shape = find_model(model) if isinstance(model, str) else model
    return Workload(
        model=shape, global_batch=global_batch, sequence_length=sequence_length, **others
    )


def nodes(text: str) -> Composition:
    """`fast-0:2 slow-0:1` is a node of two demo-fast and a node of one demo-slow GPU."""
    rows = [part.split(":") for part in text.split()]
    return Composition(
        tuple(
            Node(name=name, gpu_type=TYPES[name.split("-")[0]], gpus=int(gpus))
            for name, gpus in rows
        )
    )


def template(
    text: str,
    micro_batch: int = 1,
    micro_batches: Sequence[int] = (1,),
    gpu_type: str = "demo-fast",
) -> FilledTemplate:
    """`2x4 1x2` is a stage of TP 2 with four layers, then one of TP 1 with two."""
    stages = []
    for part in text.split():
        tp, layers = map(int, part.split("x"))
        stages.append(Stage(gpu_type=gpu_type, tp=tp, layers=layers))
    return FilledTemplate(tuple(stages), micro_batch, tuple(micro_batches))


def placed(*templates: FilledTemplate, composition: Composition) -> Plan:
    """The templates as the planner places them."""
    where = place(MODEL, templates, composition)
    assert where is not None, "the templates do not fit on the nodes"
    return Plan(tuple(templates), where)


def on_one_node(*templates: FilledTemplate, node: str = "fast-0") -> Plan:
    """The templates on consecutive GPUs of one node, in plan order."""
    where, gpu = [], 0
    for t, filled in enumerate(templates):
        for r in range(filled.replicas):
            for s, stage in enumerate(filled.stages):
                where.append(PlacedStage(t, r, s, node, tuple(range(gpu, gpu + stage.tp))))
                gpu += stage.tp
    return Plan(tuple(templates), tuple(where))


def tiled(
    text: str, ep: int = 1, etp: int = 0, replicas: int = 1, nodes: Sequence[str] = ("a",)
) -> Plan:
    """One template of stages `TPxLAYERS` with EP and ETP; its replicas take turns on the nodes."""
    rows = [tuple(map(int, part.split("x"))) for part in text.split()]
    stages = tuple(Stage(gpu_type="a", tp=tp, layers=layers, ep=ep, etp=etp) for tp, layers in rows)
    used = dict.fromkeys(nodes, 0)
    where = []
    for replica in range(replicas):
        node = nodes[replica % len(nodes)]
        for s, stage in enumerate(stages):
            gpus = tuple(range(used[node], used[node] + stage.tp))
            used[node] += stage.tp
            where.append(PlacedStage(0, replica, s, node, gpus))
    return Plan((FilledTemplate(stages, 1, (1,) * replicas),), tuple(where))


@st.composite
def compositions(draw: st.DrawFn, most_nodes: int = 4, most_gpus: int = 4) -> Composition:
    """One to four nodes of one to four GPUs, mostly demo-fast."""
    kinds = draw(
        st.lists(
            st.tuples(st.sampled_from(["fast", "fast", "slow"]), st.integers(1, most_gpus)),
            min_size=1,
            max_size=most_nodes,
        )
    )
    return Composition(
        tuple(
            Node(name=f"n{i}", gpu_type=TYPES[kind], gpus=gpus)
            for i, (kind, gpus) in enumerate(kinds)
        )
    )


@st.composite
def splits(draw: st.DrawFn, depth: int, layers: int = MODEL.layers) -> tuple[int, ...]:
    """Positive counts, one per stage, that sum to the model's layers."""
    cuts = draw(
        st.lists(st.integers(1, layers - 1), min_size=depth - 1, max_size=depth - 1, unique=True)
    )
    edges = [0, *sorted(cuts), layers]
    return tuple(b - a for a, b in pairwise(edges))


@st.composite
def filled_templates(draw: st.DrawFn, composition: Composition) -> FilledTemplate:
    """A template whose one replica packs onto the composition, with one to three replicas."""
    largest = composition.largest_gpus.items()
    options = [(kind, tp) for kind, most in largest for tp in (1, 2, 4) if tp <= most]
    chosen = draw(st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=4))
    while not can_pack({o: chosen.count(o) for o in chosen}, room_of(composition)):
        chosen.pop()
    layers = draw(splits(len(chosen)))
    stages = tuple(
        Stage(gpu_type=kind, tp=tp, layers=count)
        for (kind, tp), count in zip(chosen, layers, strict=True)
    )
    counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    return FilledTemplate(stages, draw(st.sampled_from([1, 2, 4])), tuple(counts))


@st.composite
def plans_on(draw: st.DrawFn, composition: Composition) -> Plan:
    """A placed plan of one to three templates; `workload_of` says what it trains."""
    wanted = draw(st.lists(filled_templates(composition), min_size=1, max_size=3))
    kept: list[FilledTemplate] = []
    for row in wanted:
        for replicas in range(row.replicas, 0, -1):
            smaller = FilledTemplate(row.stages, row.micro_batch, row.micro_batches[:replicas])
            if place(MODEL, (*kept, smaller), composition) is not None:
                kept.append(smaller)
                break
    return placed(*kept, composition=composition)


def workload_of(plan: Plan) -> Workload:
    """The workload whose global batch is exactly what the plan trains."""
    return workload(sum(row.samples for row in plan.templates))


@st.composite
def moe_plans(draw: st.DrawFn, model: ModelShape = MOE) -> Plan:
    """One to three templates of `model` in any tiling, each stage on any of four nodes."""
    templates, placement = [], []
    used = dict.fromkeys("abcd", 0)
    for t in range(draw(st.integers(1, 3))):
        replicas = draw(st.integers(1, 4))
        layers = draw(splits(draw(st.integers(1, 2)), model.layers))
        stages = []
        for index, count in enumerate(layers):
            tp = draw(st.sampled_from([1, 2, 4]))
            routed = sum(layers[: index + 1]) > model.experts.dense_blocks
            options = [
                (ep, etp)
                for ep in (1, 2, 4)
                for etp in (1, 2, 4)
                if routed and replicas * tp % (ep * etp) == 0
            ]
            ep, etp = draw(st.sampled_from([(1, 0), *options]))
            stages.append(Stage(gpu_type="a", tp=tp, layers=count, ep=ep, etp=etp))
        for replica in range(replicas):
            for s, stage in enumerate(stages):
                node = draw(st.sampled_from(sorted(used)))
                gpus = tuple(range(used[node], used[node] + stage.tp))
                used[node] += stage.tp
                placement.append(PlacedStage(t, replica, s, node, gpus))
        templates.append(FilledTemplate(tuple(stages), 1, (1,) * replicas))
    return Plan(tuple(templates), tuple(placement))


def _owned(regions: Regions, seat: Seat) -> Mask:
    """Of the holders in a template, replicas take turns to own what each of them holds."""
    template = seat.pipeline.template
    stage = template.stages[seat.stage]
    copies = template.replicas if stage.ep * stage.expert_tp == stage.tp else 1
    turn: Mask = np.arange(len(regions)) % copies == seat.pipeline.replica % copies
    return regions.of_seat(seat) & turn


# A rule with owners, as ZeRO 1 has one: no product code has it yet.
OWNERS = StateRule(((PARTS[:1], Regions.of_seat), (PARTS[1:], _owned)))


def seat_pieces(model: ModelShape, seat: Seat, cuts: Cuts) -> tuple[Piece, ...]:
    """All pieces that one seat holds, in canonical order."""
    return tuple(
        piece
        for tensor in held_tensors(model, seat.layers)
        for piece in held_pieces(tensor, seat, cuts)
    )


@cache
def piece_shapes(model: ModelShape, cuts: Cuts) -> dict[Piece, tuple[int, ...]]:
    """The shape of every piece of a model, in canonical order."""
    shapes: dict[Piece, tuple[int, ...]] = {}
    for tensor in model_tensors(model):
        for piece in tensor_pieces(tensor, cuts):
            shape = list(tensor.shape)
            shape[tensor.row_dim] = piece.stop - piece.start
            if tensor.experts:
                shape[0] = piece.expert_stop - piece.expert_start
            shapes[piece] = tuple(shape)
    return shapes


def piece_numels(model: ModelShape, cuts: Cuts) -> dict[Piece, int]:
    """The number of elements of every piece of a model, in canonical order."""
    return {piece: math.prod(shape) for piece, shape in piece_shapes(model, cuts).items()}


def heddle_job(name: str, **spec: Any) -> dict[str, Any]:
    """A HeddleJob as it is applied: the smallest model on the built-in text, unless `spec` says."""
    return {
        "apiVersion": "heddle.dev/v1alpha1",
        "kind": "HeddleJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "tiny-llama"},
            "data": {"builtin": "text"},
            "training": {"globalBatch": 8, "sequenceLength": 128},
            "steps": 10,
            **spec,
        },
    }
