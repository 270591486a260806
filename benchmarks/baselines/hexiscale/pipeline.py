"""HexiScale's pipelines: TP and PP of each machine from a table, layers by memory, and prices.

Everything is counted at the full peak of a GPU.
Source: Yan et al., HexiScale, MLSys 2026, whose factors these are.
Legend: s tokens, h hidden, V vocabulary, L blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.baselines.layout import Gpu
from benchmarks.baselines.quantities import Quantities
from planner.cluster.gpu_types import find_gpu

# TP degrees of the stages of so many GPUs of a machine; those of 5 to 7 continue the table.
SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((1,),),
    2: ((2,), (1, 1)),
    3: ((2, 1), (1, 1, 1)),
    4: ((4,), (2, 2), (2, 1, 1)),
    5: ((4, 1), (2, 2, 1), (2, 1, 1, 1)),
    6: ((4, 2), (2, 2, 2), (2, 2, 1, 1)),
    7: ((4, 2, 1), (2, 2, 2, 1)),
    8: ((8,), (4, 4), (4, 2, 2)),
}
LARGEST = max(SHAPES)
FORWARD_BACKWARD = {"none": 72, "selective": 72, "full": 96}  # of m s h^2, by recomputation
TP_MESSAGES = {"none": 8, "selective": 8, "full": 12}  # of m s h values
BLOCK_WEIGHTS = 12  # h^2 of a block
STATE_FACTOR = 4  # times the weights in two bytes
# Bytes of s h that a block keeps of a sample, cut by TP; of a recomputed one its input alone.
# Source: Korthikanti et al., Reducing activation recomputation, 2022, without attention scores.
ACTIVATION_BYTES = 34


@dataclass(frozen=True, slots=True)
class TypedStage:
    """A TP group of one machine."""

    gpu_type: str
    gpus: tuple[Gpu, ...]

    @property
    def tp(self) -> int:
        """The TP degree."""
        return len(self.gpus)


def layer_seconds(numbers: Quantities, stage: TypedStage, samples: int) -> float:
    """Both passes of a block, TP messages too."""
    workload = numbers.question.workload
    model, tokens = workload.model, workload.sequence_length
    h, v = model.hidden, model.vocab
    flops = FORWARD_BACKWARD[numbers.recompute] * samples * tokens * h**2
    flops *= 1 + tokens / (6 * h) + v / (16 * model.layers * h)
    peak = find_gpu(stage.gpu_type).matrix_flops_s
    messages = TP_MESSAGES[numbers.recompute] * samples * tokens * h * numbers.value_bytes
    peers = stage.tp - 1
    return flops / (peak * stage.tp) + peers * messages / (
        stage.tp * numbers.inside(stage.gpu_type)
    )


def link_seconds(numbers: Quantities, one: TypedStage, other: TypedStage, samples: int) -> float:
    """A message between two stages over their best pair, and a broadcast behind it."""
    message = numbers.boundary_bytes(samples)
    if one.gpus[0][0] == other.gpus[0][0]:
        sent_s = message / numbers.inside(one.gpu_type)
    else:
        sent_s = message / numbers.between(one.gpu_type, other.gpu_type)
    spread_s = message / numbers.inside(other.gpu_type) if other.tp > 1 else 0.0
    return sent_s + spread_s


def layers_by_memory(
    numbers: Quantities, stages: Sequence[TypedStage], samples: int
) -> tuple[int, ...] | None:
    """Blocks of each stage in proportion to its memory; None if a stage is over it.

    Round after round each stage takes one until it has its share; the largest take what is left.
    """
    model = numbers.question.workload.model
    memory = [numbers.memory_bytes(stage.gpu_type) * stage.tp for stage in stages]
    shares = [model.layers * one // sum(memory) for one in memory]
    blocks = [0] * len(stages)
    left = model.layers
    while left and any(have < share for have, share in zip(blocks, shares, strict=True)):
        for index, share in enumerate(shares):
            if left and blocks[index] < share:
                blocks[index] += 1
                left -= 1
    largest = sorted(range(len(stages)), key=lambda index: (-memory[index], index))
    for place in range(left):
        blocks[largest[place % len(largest)]] += 1
    held = (
        stage_bytes(numbers, stage, have, samples, index in (0, len(stages) - 1))
        for index, (stage, have) in enumerate(zip(stages, blocks, strict=True))
    )
    fits = all(
        need <= numbers.memory_bytes(stage.gpu_type)
        for need, stage in zip(held, stages, strict=True)
    )
    return tuple(blocks) if fits and min(blocks) >= 1 else None


def stage_bytes(
    numbers: Quantities, stage: TypedStage, blocks: int, samples: int, is_end: bool
) -> float:
    """Memory of a GPU: state of the weights, and the activations of one micro-batch."""
    workload = numbers.question.workload
    h, v = workload.model.hidden, workload.model.vocab
    weights = BLOCK_WEIGHTS * h**2 * blocks / stage.tp + (h * v / stage.tp if is_end else 0)
    values = samples * workload.sequence_length * h
    kept = values * (1 if numbers.recompute == "full" else ACTIVATION_BYTES / stage.tp) * blocks
    activation_bytes = kept * (numbers.value_bytes if numbers.recompute == "full" else 1)
    return weights * numbers.value_bytes * STATE_FACTOR + activation_bytes


def pipeline_seconds(
    numbers: Quantities,
    stages: Sequence[TypedStage],
    blocks: Sequence[int],
    samples: int,
    micro_batches: int,
) -> float:
    """GPipe's wavefront: the sum over its columns of the slowest stage that works in them."""
    times = [
        layer_seconds(numbers, stage, samples) * have
        for stage, have in zip(stages, blocks, strict=True)
    ]
    for index in range(len(stages) - 1):
        times[index] += link_seconds(numbers, stages[index], stages[index + 1], samples)
    depth = len(times)
    full = max(0, micro_batches - depth + 1)  # columns in which all stages work
    total = full * max(times)
    columns = micro_batches + depth - 1
    for column in (*range(min(depth - 1, columns)), *range(depth - 1 + full, columns)):
        total += max(times[max(0, column - micro_batches + 1) : column + 1])
    return total


def shaped(
    numbers: Quantities, machine: Sequence[tuple[str, Gpu]], blocks: int, samples: int
) -> list[TypedStage]:
    """The GPUs of one machine as stages, by the shape whose pipeline alone is fastest."""
    found: list[TypedStage] = []
    for start in range(0, len(machine), LARGEST):
        part = machine[start : start + LARGEST]
        gpu_type = part[0][0]
        allowed = numbers.tp_degrees(gpu_type, LARGEST)
        best: tuple[float, list[TypedStage]] | None = None
        for shape in (*SHAPES[len(part)], (1,) * len(part)):
            if any(tp not in allowed for tp in shape):
                continue
            stages, first = [], 0
            for tp in shape:
                stages.append(TypedStage(gpu_type, tuple(g for _, g in part[first : first + tp])))
                first += tp
            counts = [max(1, blocks * stage.tp // len(part)) for stage in stages]
            seconds = pipeline_seconds(numbers, stages, counts, samples, len(stages))
            if best is None or seconds < best[0]:
                best = (seconds, stages)
        assert best is not None
        found += best[1]
    return found
