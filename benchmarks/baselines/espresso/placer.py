"""Espresso's stage placer: which type stands where, and how many layers it takes.

From the front each stage takes the GPU type with the least compute share to spare, and as many
blocks as are hidden (their gradient sum ends behind the backward passes of the stages before), fit
in memory and are its share.  Blocks that are left go one by one to the stage with the most room.
Every number of blocks of the first stage is priced.
Memory is 16 bytes for each parameter (weight and gradient in fp16, fp32 master and moments), and
the activations of the micro-batches in flight.
Source: Zhou et al., Espresso, INFOCOM 2025.   Legend: D stages, L blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from benchmarks.baselines.espresso.schedule import play
from benchmarks.baselines.quantities import Quantities

PLACER_BACKWARD, BACKWARD = 2.7, 3.0  # forward passes in a backward pass: in the placer, in a price
SYNC_BYTES = 8  # of the gradient sum, for each parameter
PARAMETER_BYTES = 16


@dataclass(frozen=True, slots=True)
class Placed:
    """Stages of a pipeline: (GPU type, blocks) from the first to the last."""

    stages: tuple[tuple[str, int], ...]


class Placer:
    """Places and prices stages for one micro-batch size and DP."""

    def __init__(self, numbers: Quantities, size: int, dp: int) -> None:
        self.numbers, self.size, self.dp = numbers, size, dp
        self.micro_batches = numbers.question.workload.global_batch // (size * dp)
        self.blocks = numbers.layers - 2
        self.room = cache(self._room)
        self.forward_s = cache(self._forward_s)

    def _forward_s(self, gpu_type: str) -> float:
        """Of one block."""
        return self.numbers.forward_seconds(gpu_type, 1, self.size)[-2]

    def _room(self, gpu_type: str, stage: int, depth: int) -> int:
        """Blocks that fit on a GPU as that stage."""
        numbers = self.numbers
        kept = numbers.activation_bytes(gpu_type, 1, self.size)
        weights = numbers.parameters(1)
        in_flight = min(self.micro_batches, depth - stage)
        ends = [layer for layer, is_here in ((0, stage == 0), (-1, stage == depth - 1)) if is_here]
        beside = sum(PARAMETER_BYTES * weights[e] + in_flight * kept[e] for e in ends)
        block = PARAMETER_BYTES * weights[-2] + in_flight * kept[-2]
        return max(0, int((numbers.memory_bytes(gpu_type) - beside) // block))

    def fits(self, gpu_type: str, depth: int) -> bool:
        """Whether so many stages of one type hold the model."""
        rooms = [self.room(gpu_type, stage, depth) for stage in range(depth)]
        return min(rooms) >= 1 and sum(rooms) >= self.blocks

    def placements(self, counts: Mapping[str, int]) -> Iterator[Placed]:
        """One for each number of blocks of the first stage, where the model fits; none twice."""
        depth = sum(counts.values())
        speed = sum(number / self.forward_s(kind) for kind, number in counts.items())
        shares = {kind: self.blocks / self.forward_s(kind) / speed for kind in counts}
        seen: set[Placed] = set()
        for first in range(1, self.blocks - depth + 2):
            placed = self._placed(counts, shares, depth, first)
            if placed is not None and placed not in seen:
                seen.add(placed)
                yield placed

    def _placed(
        self, counts: Mapping[str, int], shares: Mapping[str, float], depth: int, first: int
    ) -> Placed | None:
        left, passed_s = Counter(counts), 0.0
        stages: list[tuple[str, int]] = []
        taken = 0
        for stage in range(depth):
            most = self.blocks - taken - (depth - stage - 1)
            found: list[tuple[float, str, int]] = []
            for kind in sorted(kind for kind, number in left.items() if number):
                wanted = first if stage == 0 else max(1, int(shares[kind] + 0.5))
                hidden = wanted if stage == 0 else self._hidden(kind, passed_s)
                blocks = min(wanted, hidden, self.room(kind, stage, depth), most)
                if blocks >= 1:
                    found.append((abs(shares[kind] - blocks), kind, blocks))
            if not found:
                return None
            _, kind, blocks = min(found)
            left[kind] -= 1
            taken += blocks
            stages.append((kind, blocks))
            passed_s += PLACER_BACKWARD * self.forward_s(kind) * blocks
        for _ in range(self.blocks - taken):
            room = [self.room(kind, s, depth) - blocks for s, (kind, blocks) in enumerate(stages)]
            widest = max(range(depth), key=lambda s: (room[s], -s))
            if room[widest] < 1:
                return None
            kind, blocks = stages[widest]
            stages[widest] = (kind, blocks + 1)
        return Placed(tuple(stages))

    def _hidden(self, gpu_type: str, passed_s: float) -> int:
        """Blocks whose gradient sum takes no longer than that, one at least."""
        if self.dp == 1:
            return self.blocks
        block_s = self._sync_s(gpu_type, self.numbers.parameters(1)[-2])
        return max(1, int(passed_s / block_s))

    def _sync_s(self, gpu_type: str, parameters: int) -> float:
        if self.dp == 1:
            return 0.0
        return SYNC_BYTES * parameters / self.numbers.between(gpu_type, gpu_type)

    def seconds(self, placed: Placed) -> float:
        """The schedule, and the gradient sum of the stage that ends last with it."""
        numbers, stages = self.numbers, placed.stages
        depth = len(stages)
        forward = np.array([self.forward_s(kind) * blocks for kind, blocks in stages])
        forward[0] += numbers.forward_seconds(stages[0][0], 1, self.size)[0]
        forward[-1] += numbers.forward_seconds(stages[-1][0], 1, self.size)[-1]
        message = numbers.boundary_bytes(self.size)
        send = np.array(
            [*(message / numbers.between(a[0], b[0]) for a, b in pairwise(stages)), 0.0]
        )
        ends = np.zeros(depth)
        play(forward, BACKWARD * forward, send, self.micro_batches, ends)
        weights = numbers.parameters(1)
        held = [blocks * weights[-2] for _, blocks in stages]
        held[0] += weights[0]
        held[-1] += weights[-1]
        return max(
            float(end) + self._sync_s(kind, parameters)
            for end, (kind, _), parameters in zip(ends, stages, held, strict=True)
        )
