"""Sailor's rules before its dynamic programme: layers, memory and TP degrees of each stage.

Source: Strati et al., Sailor, SOSP 2025: 24 bytes for each parameter, activations of all
micro-batches in flight, 2 GB beside them (3 GB with TP).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from benchmarks.baselines.quantities import Quantities

PARAMETER_BYTES = 24
BESIDE_BYTES = {True: 2_000_000_000, False: 3_000_000_000}  # by whether TP is 1
SCALES = 1.5  # times faster with the next TP degree, or it is not worth its GPUs


def even_cuts(layers: int, stages: int) -> tuple[int, ...]:
    """Cuts of the layers into even stages; the last ones take what remains."""
    cuts = [0]
    for stage in range(stages):
        cuts.append(cuts[-1] + layers // stages + (stage >= stages - layers % stages))
    return tuple(cuts)


def fits(
    numbers: Quantities, gpu_type: str, tp: int, size: int, place: tuple[int, int, int]
) -> bool:
    """Whether layers [start, stop) fit on a GPU, so many micro-batches in flight."""
    start, stop, in_flight = place
    parameters = sum(numbers.parameters(tp)[start:stop])
    activations = sum(numbers.activation_bytes(gpu_type, tp, size)[start:stop])
    held = PARAMETER_BYTES * parameters + activations * in_flight + BESIDE_BYTES[tp == 1]
    return held <= numbers.memory_bytes(gpu_type)


def stage_seconds(
    numbers: Quantities, gpu_type: str, tp: int, size: int, start: int, stop: int
) -> float:
    """Both passes of layers [start, stop) for one micro-batch."""
    return sum(numbers.layer_seconds(gpu_type, tp, size)[start:stop])


def tp_degrees(
    numbers: Quantities,
    degrees: Mapping[str, Sequence[int]],
    size: int,
    cuts: Sequence[int],
    *,
    as_released: bool,
) -> dict[str, tuple[int, ...]]:
    """The TP degree of each stage by GPU type; a type that fits no stage somewhere is left out.

    The larger of the smallest degree that fits in memory, and the one up to which each step makes
    the stage `SCALES` times faster.
    """
    found: dict[str, tuple[int, ...]] = {}
    for gpu_type, allowed in sorted(degrees.items()):
        by_memory_alone = as_released and len(degrees) > 1 and gpu_type == min(degrees)
        row = []
        for stage, (start, stop) in enumerate(pairwise(cuts)):
            place = (start, stop, len(cuts) - 1 - stage)
            least = next((tp for tp in allowed if fits(numbers, gpu_type, tp, size, place)), 0)
            if not least:
                break
            scales = allowed[0]
            for tp, larger in pairwise(allowed):
                before = stage_seconds(numbers, gpu_type, tp, size, start, stop)
                after = stage_seconds(numbers, gpu_type, larger, size, start, stop)
                if before < SCALES * after:
                    break
                scales = larger
            row.append(least if by_memory_alone else max(least, scales))
        else:
            found[gpu_type] = tuple(row)
    return found
