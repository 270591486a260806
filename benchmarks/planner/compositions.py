"""The compositions that the planner is measured on, generated from one committed seed.

Thirty of 32 to 512 GPUs with two to four types, half of them with nodes of one size and half with
mixed ones, and three of 4,096 GPUs; every other one has a global batch of 2048, the rest of 16384.
Invariant: the same seed gives the same compositions, so committed references stay valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from planner.cluster.composition import Composition
from planner.model.catalogue import find_model
from planner.model.workload import Workload

SEED = 6
TYPES = ("a100-40", "a100-80", "h100", "a6000")
SIZES = (1, 2, 4, 8)  # GPUs of a node
TOTALS = (32, 48, 64, 96, 128, 160, 192, 256, 384, 512)
BATCHES = (2048, 16384)
SEQUENCE_LENGTH = 2048
UNIT = 8  # every type has a multiple of so many GPUs
USUAL_GPUS = 1000  # a composition of more is huge
HUGE_GPUS = 4096


@dataclass(frozen=True, slots=True)
class Case:
    """A composition and the batch that is trained on it.

    Attributes:
        name: as it is called in results.
        text: as `heddle plan --composition` takes it.
        batch: samples a step.
    """

    name: str
    text: str
    batch: int

    @property
    def composition(self) -> Composition:
        """The nodes."""
        return Composition.from_text(self.text)

    def workload(self, model: str) -> Workload:
        """Training of that model on it, with the settings that `heddle plan` takes."""
        shape = find_model(model)
        return Workload(
            model=shape,
            global_batch=self.batch,
            sequence_length=SEQUENCE_LENGTH,
            precision="fp16",
            recompute=shape.recompute,
            memory="paper",
        )


def cases() -> tuple[Case, ...]:
    """All of them, `c00` to `c32`; the last three are the huge ones."""
    random = Random(SEED)
    found = []
    for index in range(33):
        is_huge = index >= 30
        total = HUGE_GPUS if is_huge else TOTALS[index // 3]
        is_mixed = index // 2 % 2 == 1
        kinds = 2 + index % 3
        text = _composition(random, total, kinds, is_mixed)
        found.append(Case(f"c{index:02}", text, BATCHES[index % 2]))
    return tuple(found)


def _composition(random: Random, total: int, kinds: int, is_mixed: bool) -> str:
    types = sorted(random.sample(TYPES, kinds), key=TYPES.index)
    cuts = sorted(random.sample(range(1, total // UNIT), kinds - 1))
    shares = [UNIT * (b - a) for a, b in zip([0, *cuts], [*cuts, total // UNIT], strict=True)]
    size = random.choice(SIZES[1:])
    parts = []
    for name, gpus in zip(types, shares, strict=True):
        nodes = _mixed_nodes(random, gpus) if is_mixed else {size: gpus // size}
        sizes = "+".join(f"{n}x{g}" for g, n in sorted(nodes.items(), reverse=True) if n)
        parts.append(f"{name}={sizes}")
    return ",".join(parts)


def _mixed_nodes(random: Random, gpus: int) -> dict[int, int]:
    """{GPUs of a node: nodes} of two or three sizes that sum up to the number of GPUs."""
    sizes = sorted(random.sample(SIZES, random.choice((2, 3))), reverse=True)
    nodes = dict.fromkeys(sizes, 0)
    left = gpus
    for size in sizes[:-1]:
        nodes[size] = random.randint(0, left // size)
        left -= size * nodes[size]
    smallest = sizes[-1]
    nodes[smallest] += left // smallest
    left %= smallest
    if left:
        nodes[1] = nodes.get(1, 0) + left
    return nodes
