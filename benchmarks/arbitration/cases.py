"""Random clusters of at most 16 GPUs of two or three types, and one to three jobs on them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from planner.cluster.composition import Composition, Node
from planner.model.catalogue import find_model
from planner.model.workload import Workload

TYPES = ("a100-80", "a100-40", "v100-16")
WORKLOADS = {
    "2.7b": Workload(
        model=find_model("gpt-neo-2.7b"),
        global_batch=64,
        sequence_length=2048,
        precision="fp16",
        memory="worker",
    ),
    "8b": Workload(
        model=find_model("llama3-8b"),
        global_batch=64,
        sequence_length=2048,
        precision="bf16",
        memory="worker",
    ),
}
SIZES = (2, 4)


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a case.

    Attributes:
        workload: key of `WORKLOADS`.
        rank: of its priority; 0 is the highest.
        least: `minGPUs`.
        most: `maxGPUs`, or what its quota leaves.
    """

    name: str
    workload: str
    rank: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Case:
    """Free nodes, and the jobs that want them."""

    nodes: Composition
    jobs: tuple[Job, ...]


def a_case(seed: int) -> Case:
    """The case of a seed; names of nodes say nothing of their speed."""
    chance = random.Random(seed)
    types = chance.sample(TYPES, chance.choice((2, 2, 3)))
    count = chance.choice((1, 1, 2, 2, 3))
    left, nodes = chance.randint(6, 16 if count < 3 else 10), []
    letters = chance.sample("abcdefgh", 8)
    while left > 1 and len(nodes) < 6:
        gpus = min(left, chance.choice(SIZES))
        gpu_type = types[len(nodes) % len(types)]
        nodes.append(Node(name=letters[len(nodes)], gpu_type=gpu_type, gpus=gpus))
        left -= gpus
    total = sum(node.gpus for node in nodes)
    jobs = []
    for index in range(count):
        least = chance.choice((1, 2))
        most = chance.randint(max(2, least), max(2, total // (1 if count == 1 else 2)))
        name, rank = f"j{index}", chance.choice((0, 0, 1))
        jobs.append(Job(name, chance.choice(tuple(WORKLOADS)), rank, least, most))
    return Case(Composition(tuple(nodes)), tuple(jobs))
