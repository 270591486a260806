"""HexiScale's pipelines: the wavefront, the layers by memory, and the shapes of a machine."""

from __future__ import annotations

import pytest

from benchmarks.baselines.hexiscale.pipeline import (
    SHAPES,
    TypedStage,
    layer_seconds,
    layers_by_memory,
    link_seconds,
    pipeline_seconds,
    shaped,
)
from benchmarks.baselines.quantities import Quantities
from tests.baselines import question

NUMBERS = Quantities(question("h100=2x4,a6000=2x4", layers=16))


def stage(kind, tp, node=0):
    return TypedStage(kind, tuple((f"{kind}-{node}", gpu) for gpu in range(tp)))


def test_every_shape_takes_all_gpus_of_its_machine():
    assert all(sum(shape) == gpus for gpus, shapes in SHAPES.items() for shape in shapes)


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 7])
@pytest.mark.parametrize("blocks", [(6, 6, 4), (2, 10, 4)])
def test_the_wavefront_is_the_sum_of_its_columns(blocks, micro_batches):
    stages = [stage("h100", 1), stage("a6000", 2), stage("h100", 1, node=1)]
    times = [layer_seconds(NUMBERS, s, 1) * n for s, n in zip(stages, blocks, strict=True)]
    for index in range(2):
        times[index] += link_seconds(NUMBERS, stages[index], stages[index + 1], 1)
    columns = [
        max(t for s, t in enumerate(times) if 0 <= column - s < micro_batches)
        for column in range(micro_batches + 2)
    ]
    found = pipeline_seconds(NUMBERS, stages, blocks, 1, micro_batches)
    assert found == pytest.approx(sum(columns))


def test_layers_follow_memory():
    assert layers_by_memory(NUMBERS, [stage("h100", 1), stage("h100", 1, 1)], 1) == (8, 8)
    assert layers_by_memory(NUMBERS, [stage("a6000", 1), stage("h100", 1)], 1) == (6, 10)


def test_a_stage_over_its_memory_ends_the_pipeline():
    large = Quantities(question("a6000=1x1", layers=64))
    assert layers_by_memory(large, [stage("a6000", 1)], 1) is None


@pytest.mark.parametrize("kind", ["h100", "a6000"])
def test_a_machine_takes_the_shape_whose_pipeline_alone_is_fastest(kind):
    machine = [(kind, (f"{kind}-0", gpu)) for gpu in range(4)]
    found = shaped(NUMBERS, machine, 16, 1)
    alone = {}
    for shape in (*SHAPES[4], (1, 1, 1, 1)):
        row = [stage(kind, tp) for tp in shape]
        counts = [16 * tp // 4 for tp in shape]
        alone[shape] = pipeline_seconds(NUMBERS, row, counts, 1, len(row))
    assert tuple(one.tp for one in found) == min(alone, key=alone.__getitem__)
