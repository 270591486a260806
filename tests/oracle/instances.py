"""A hundred small planning problems that brute force can enumerate, from one committed seed.

Costs follow a formula of their own (launch + work over speed + collectives, each with noise), so
that no change of a GPU's constants changes a committed answer.  Each instance binds elsewhere:
links of three speeds, with and without rings; memory from plenty to too little for one GPU;
stragglers; recomputation; ZeRO; `min_holders` 2; dense blocks before the experts.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from random import Random

from planner.cluster.composition import Composition, Node
from planner.cost.memory import boundary_bytes, rule_of
from planner.model.experts import Experts
from planner.model.shape import ModelShape
from planner.model.tensors import model_numel
from planner.model.workload import Workload
from planner.plans.plan import Stage
from planner.profiles.entries import GpuType, LayerCost, LinkCost
from planner.profiles.profile import Profile
from planner.request import PlanRequest

SEED = 20260601
COUNT = 100
MAX_TEMPLATES = 4
MOE = 35  # of them, the first ones
LINKS = ("fast", "slow", "fast", "slowest")  # network, in turn
PRECISIONS = ("fp16", "bf16", "fp32")
# Nodes of each instance: GPUs of the first type, GPUs of the second.
DENSE_NODES = (
    ((2, 2), ()),
    ((4,), ()),
    ((4, 1), ()),
    ((2, 1, 1), ()),
    ((4, 2), ()),
    ((4, 4), ()),
    ((2, 2, 2), ()),
    ((1, 1, 1, 1, 1), ()),
    ((2, 2, 2, 2), ()),
    ((2,), (2,)),
    ((2, 1), (2,)),
    ((4,), (2,)),
    ((4,), (1, 1)),
    ((2, 2), (2,)),
    ((1, 1, 1), (2,)),
    ((4,), (4,)),
)
MOE_NODES = (
    ((2, 2), ()),
    ((4,), ()),
    ((1, 1, 1, 1), ()),
    ((4, 1), ()),
    ((4, 2), ()),
    ((2, 2, 2), ()),
    ((2,), (2,)),
    ((2, 1), (2,)),
    ((2, 2), (1,)),
    ((4,), (2,)),
    ((2, 2), (2,)),
    ((4, 4), ()),
    ((2, 2, 2, 2), ()),
)


@dataclass(frozen=True, slots=True)
class Instance:
    """One problem."""

    name: str
    request: PlanRequest
    profile: Profile

    @property
    def is_moe(self) -> bool:
        return self.request.workload.model.experts is not None

    @property
    def digest(self) -> str:
        """Names every number of the problem, so that a committed answer knows its question.

        Spelled out, so that a new field with a default changes no digest, nor how a model computes
        what takes as long either way.
        """
        profile, workload = self.profile, self.request.workload
        model = {key: value for key, value in workload.model.to_json().items() if value}
        model.pop("arithmetic", None)
        if model.get("experts"):  # how they are routed takes as long either way
            kept = ("count", "per_token", "ffn", "shared", "dense_blocks")
            model["experts"] = {key: model["experts"][key] for key in kept}
        rows = [
            sorted(model.items()),
            (workload.global_batch, workload.sequence_length, workload.precision),
            (workload.zero, workload.recompute, self.request.min_holders, MAX_TEMPLATES),
            [(n.name, n.gpu_type, n.gpus, n.speed_factor) for n in self.request.composition.nodes],
            sorted((key, _seconds(cost)) for key, cost in profile.layers.items()),
            sorted((key, _seconds(cost)) for key, cost in profile.tiles.items()),
            sorted((key, _link(link)) for key, link in profile.inside_links.items()),
            sorted((key, _link(link)) for key, link in profile.nics.items()),
            sorted(
                (key, size, _link(link))
                for key, rings in profile.rings.items()
                for size, link in rings.items()
            ),
            [
                (key, kind.usable_bytes, kind.optimizer_latency_s, kind.optimizer_s_per_parameter)
                for key, kind in sorted(profile.types.items())
            ],
        ]
        return hashlib.blake2b(json.dumps(rows).encode(), digest_size=6).hexdigest()


def _seconds(cost: LayerCost) -> tuple[float, ...]:
    return (
        cost.forward_s,
        cost.backward_s,
        cost.tp_communication_s,
        cost.activation_bytes,
        cost.attention_s,
        cost.attention_bytes,
        cost.input_bytes,
    )


def _link(link: LinkCost) -> tuple[float, float]:
    return link.latency_s, link.bandwidth_bytes_per_s


def instances() -> tuple[Instance, ...]:
    """All of them, the same ones on every machine."""
    return tuple(_instance(index, Random(f"{SEED}/{index}")) for index in range(COUNT))


def _instance(index: int, random: Random) -> Instance:
    moe = index < MOE
    sizes = (MOE_NODES if moe else DENSE_NODES)[index % len(MOE_NODES if moe else DENSE_NODES)]
    workload = Workload(
        model=_model(index, random, moe),
        global_batch=random.choice((6, 8, 10, 12, 16)) if not moe else random.choice((6, 8, 12)),
        sequence_length=random.choice((128, 256, 512)),
        precision=random.choice(PRECISIONS),
        zero=int(random.random() < 0.15),
        recompute=random.choice(("none", "none", "none", "selective", "full")),
        memory="paper",
    )
    types = tuple(_Type(f"type-{letter}", random) for letter in "ab")
    nodes = []
    for kind, counts in zip(types, sizes, strict=True):
        for number, gpus in enumerate(counts):
            straggles = random.random() < 0.08
            nodes.append(
                Node(
                    name=f"{kind.name}-{number}",
                    gpu_type=kind.name,
                    gpus=gpus,
                    speed_factor=0.8 if straggles else 1.0,
                )
            )
    profile = _profile(workload, types, LINKS[index % len(LINKS)], random)
    request = PlanRequest(
        workload=workload,
        composition=Composition(tuple(nodes)),
        min_holders=2 if random.random() < 0.2 else 1,
        budget_evaluations=3000,
        max_templates=MAX_TEMPLATES,
    )
    return Instance(f"{index:02d}-{'moe' if moe else 'dense'}", request, profile)


def _model(index: int, random: Random, moe: bool) -> ModelShape:
    layers = random.choice((2, 3, 4) if moe else (3, 4, 5, 6))
    experts = None
    if moe:
        experts = Experts(
            count=random.choice((2, 4, 8)),
            per_token=random.choice((1, 2)),
            ffn=random.choice((256, 512, 1024)),
            shared=random.choice((0, 1)),
            dense_blocks=random.choice((0, 0, 1)),
        )
    return ModelShape(
        name=f"oracle-{index:02d}",
        layers=layers,
        hidden=random.choice((256, 512)),
        heads=8,
        kv_heads=random.choice((4, 8)),
        ffn=random.choice((1024, 2048)),
        vocab=random.choice((1024, 8192)),
        experts=experts,
    )


class _Type:
    """The constants of one GPU type."""

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self.flops_s = random.uniform(0.5, 2.0) * 1e12
        self.launch_s = random.uniform(0.2, 1.0) * 1e-3
        self.memory_share = random.choice((0.45, 0.55, 0.7, 0.9, 1.5, 4.0))
        self.inside = LinkCost(random.uniform(1, 4) * 1e-5, random.uniform(5, 40) * 1e9)
        self.nic_share = random.uniform(0.5, 2.0)


def _profile(workload: Workload, types: tuple[_Type, ...], links: str, random: Random) -> Profile:
    sizes = random.choice(((1, 2), (1, 2), (2, 4), (1, 3)))
    rate = {"fast": 5e9, "slow": 0.4e9, "slowest": 0.08e9}[links]
    network = LinkCost(2e-5, rate)
    layers, tiles, gpu_types, rings = {}, {}, {}, {}
    with_rings = random.random() < 0.4
    for kind in types:
        degrees = (1, 2, 4) if random.random() < 0.5 else (1, 2)
        for tp in degrees:
            for b in sizes:
                for layer in ("embedding", *workload.model.block_kinds, "head"):
                    cost = _layer(
                        workload, kind, layer, Stage(gpu_type=kind.name, tp=tp, layers=1), b, random
                    )
                    layers[layer, kind.name, tp, b] = cost
                for ep, etp in _tilings(workload.model):
                    if (ep, etp) != (1, tp):
                        stage = Stage(
                            gpu_type=kind.name, tp=tp, layers=1, recompute="none", ep=ep, etp=etp
                        )
                        cost = _layer(workload, kind, "moe_block", stage, b, random)
                        tiles[kind.name, tp, b, ep, etp] = cost
        gpu_types[kind.name] = _gpu_type(workload, kind, random)
        if with_rings:
            inside = kind.inside
            rings[kind.name] = {
                size: LinkCost(inside.latency_s * 2, inside.bandwidth_bytes_per_s * 0.8)
                for size in (2, 3, 4)
            }
    return Profile(
        model=workload.model.name,
        sequence_length=workload.sequence_length,
        precision=workload.precision,
        origin="modelled",
        provenance="invented costs of the oracle's instances",
        types=gpu_types,
        layers=layers,
        inside_links={kind.name: kind.inside for kind in types},
        network=network,
        nics={kind.name: LinkCost(2e-5, rate * kind.nic_share) for kind in types},
        rings=rings,
        link_origin="modelled",
        tiles=tiles,
    )


def _tilings(model: ModelShape) -> list[tuple[int, int]]:
    if model.experts is None:
        return []
    degrees = (1, 2, 3, 4, 6, 8)
    return [
        (ep, etp)
        for ep in degrees
        for etp in degrees
        if ep * etp <= 8 and model.experts.count % ep == 0 and model.experts.ffn % etp == 0
    ]


def _layer(
    workload: Workload, kind: _Type, layer: str, stage: Stage, b: int, random: Random
) -> LayerCost:
    """Launch + work over speed, a third of it forward; activations and collectives by size."""
    model, tokens, tp = workload.model, b * workload.sequence_length, stage.tp
    h, passed = model.hidden, boundary_bytes(workload, b)
    routed = 0.0
    if layer == "embedding":
        flops, launches, reduced, kept = 0.0, 0.1, 1.0, passed
    elif layer == "head":
        flops, launches, reduced, kept = 6.0 * tokens * h * model.padded_vocab, 0.5, 2.0, 2 * passed
    else:
        attention = 6.0 * tokens * 4 * h * h + 12.0 * tokens * workload.sequence_length * h
        width = model.ffn
        if layer == "moe_block":
            experts = model.experts
            held = experts.count // stage.ep
            width = (experts.per_token + experts.shared) * experts.ffn
            routed = 0.1 * held  # a launch for each expert here
        flops = attention + 6.0 * tokens * 3 * h * width
        plain = not stage.is_tiled
        reduced = 4.0 + (2.0 * model.experts.per_token if routed and plain else 0.0)
        launches, kept = 1.0 + routed, passed * (2 + 8 // tp) + passed * width // h // tp
    seconds = kind.launch_s * launches + flops / tp / kind.flops_s
    seconds *= random.uniform(0.9, 1.15)
    ring_s = 2 * (tp - 1) / tp * passed / kind.inside.bandwidth_bytes_per_s
    communication_s = reduced * (kind.inside.latency_s + ring_s) if tp > 1 else 0.0
    blocks = layer not in ("embedding", "head")
    return LayerCost(
        forward_s=round(seconds / 3, 9),
        backward_s=round(seconds * 2 / 3, 9),
        tp_communication_s=round(communication_s, 9),
        activation_bytes=kept,
        attention_s=round(seconds / 9, 9) if blocks else 0.0,
        attention_bytes=kept // 3 if blocks else 0,
        input_bytes=passed,
    )


def _gpu_type(workload: Workload, kind: _Type, random: Random) -> GpuType:
    """Memory for a share of the model's state and some activations."""
    rule, numel = rule_of(workload), model_numel(workload.model)
    state = (rule.weight + rule.gradient + rule.optimizer) * numel
    state += 2 * rule.gradient * numel // 2
    activations = 6 * workload.model.layers * boundary_bytes(workload, 4)
    memory = round(kind.memory_share * (state + activations))
    return GpuType(
        name=kind.name,
        memory_bytes=memory + 1_000_000,
        reserve_bytes=1_000_000,
        optimizer_latency_s=random.uniform(0.2, 1) * 1e-3,
        optimizer_s_per_parameter=random.uniform(0.3, 2) * 1e-10,
    )
