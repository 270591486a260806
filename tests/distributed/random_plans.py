"""Random irregular plans of a few GPUs of one node."""

from __future__ import annotations

import random

from planner.plans.plan import FilledTemplate, Plan
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


def _filled(choose: random.Random, degrees: list[int], samples: int, layers: int) -> FilledTemplate:
    blocks = _parts(choose, layers, len(degrees))
    micro_batch = choose.choice([size for size in (1, 2, 4) if samples % size == 0])
    text = "+".join(f"{tp}x{count}" for tp, count in zip(degrees, blocks, strict=True))
    return template(text, micro_batch, samples // micro_batch)


def _parts(choose: random.Random, whole: int, count: int) -> list[int]:
    """`count` numbers of at least 1 that sum to `whole`."""
    cuts = sorted(choose.sample(range(1, whole), count - 1))
    return [stop - start for start, stop in zip([0, *cuts], [*cuts, whole], strict=True)]
