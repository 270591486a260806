"""Random irregular plans of a few GPUs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from planner.model.shape import ModelShape
from planner.plans.plan import FilledTemplate, Plan, Stage
from tests.distributed.pods import place, template


def random_plan(choose: random.Random, gpus: int, layers: int, batch: int) -> Plan:
    """One to three templates of depth 1 to 4 and TP 1, 2 or 4, on any of the GPUs of node a."""
    stages: list[list[int]] = []
    free = gpus
    for _ in range(choose.randint(1, 3)):
        degrees = []
        for _ in range(choose.randint(1, 4)):
            fitting = [tp for tp in (1, 2, 4) if tp <= free]
            if not fitting:
                break
            degrees.append(choose.choice(fitting))
            free -= degrees[-1]
        if degrees:
            stages.append(degrees)
    shares = _parts(choose, batch, len(stages))
    templates = tuple(
        _filled(choose, degrees, share, layers)
        for degrees, share in zip(stages, shares, strict=True)
    )
    spots = choose.sample(range(gpus), sum(map(sum, stages)))
    return place(templates, [("a", gpu) for gpu in spots])


def tiled_plan(choose: random.Random, gpus: int, model: ModelShape, batch: int) -> Plan:
    """One or two templates with replicas, whose stages spread experts in any way that there is."""
    shapes: list[tuple[list[int], int]] = []  # TP degrees of the stages, and replicas
    free = gpus
    for _ in range(choose.randint(1, 2)):
        fitting = [s for s in ([1], [2], [1, 1], [2, 1], [4], [2, 2]) if sum(s) <= free]
        if fitting:
            degrees = choose.choice(fitting)
            replicas = max(choose.randint(1, free // sum(degrees)) for _ in range(2))
            shapes.append((degrees, replicas))
            free -= sum(degrees) * replicas
    rest = batch - sum(replicas for _, replicas in shapes)  # a sample of each replica is set
    first = choose.randint(0, rest) if len(shapes) > 1 else rest
    templates = []
    for (degrees, replicas), more in zip(shapes, (first, rest - first), strict=False):
        share = replicas + more
        fitting = [size for size in (1, 2) if not share % size and share >= size * replicas]
        size = choose.choice(fitting)
        counts = _parts(choose, share // size, replicas)
        blocks = _parts(choose, model.layers, len(degrees))
        text = "+".join(f"{tp}x{count}" for tp, count in zip(degrees, blocks, strict=True))
        plain = template(text, size, *counts)
        templates.append(replace(plain, stages=_tiled(choose, plain, model)))
    needed = sum(sum(degrees) * replicas for degrees, replicas in shapes)
    return place(tuple(templates), [("a", gpu) for gpu in choose.sample(range(gpus), needed)])


def apart(plans: Sequence[Plan], gpus: int) -> list[Plan]:
    """The plans with their GPUs on two nodes, as far as no TP group of any of them is cut."""
    together = [{gpu} for gpu in range(gpus)]
    for placed in (placed for plan in plans for placed in plan.placement):
        joined = set[int]().union(*(one for one in together if one & set(placed.gpus)))
        together = [one for one in together if not one & joined] + [joined]
    node_of = {gpu: "ab"[i % 2] for i, one in enumerate(sorted(together, key=min)) for gpu in one}
    return [
        replace(
            plan,
            placement=tuple(replace(p, node=node_of[p.gpus[0]]) for p in plan.placement),
        )
        for plan in plans
    ]


def _tiled(choose: random.Random, plain: FilledTemplate, model: ModelShape) -> tuple[Stage, ...]:
    found, stop, experts = [], 0, model.experts
    assert experts is not None
    for stage in plain.stages:
        stop += stage.layers
        devices = plain.replicas * stage.tp
        known = [
            (ep, etp)
            for ep in range(1, devices + 1)
            for etp in range(1, devices + 1)
            if not (devices % (ep * etp) or experts.count % ep or experts.ffn % etp)
        ]
        ep, etp = choose.choice(known) if stop > experts.dense_blocks else (1, stage.tp)
        found.append(replace(stage, ep=ep, etp=etp))
    return tuple(found)


def _filled(choose: random.Random, degrees: list[int], samples: int, layers: int) -> FilledTemplate:
    blocks = _parts(choose, layers, len(degrees))
    micro_batch = choose.choice([size for size in (1, 2, 4) if samples % size == 0])
    text = "+".join(f"{tp}x{count}" for tp, count in zip(degrees, blocks, strict=True))
    return template(text, micro_batch, samples // micro_batch)


def _parts(choose: random.Random, whole: int, count: int) -> list[int]:
    """`count` numbers of at least 1 that sum to `whole`."""
    cuts = sorted(choose.sample(range(1, whole), count - 1))
    return [stop - start for start, stop in zip([0, *cuts], [*cuts, whole], strict=True)]
