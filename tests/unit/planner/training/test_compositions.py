"""Training compositions: as varied as the paper's, the same every time, none of the evaluation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from planner.composition import Composition, Node
from planner.composition_sets import committed_sets
from planner.errors import InvalidComposition
from planner.training.compositions import (
    DEMO,
    HARDWARE,
    LEAST_DISTANCE,
    SIMULATION,
    distance,
    nearest,
    node_counts,
    range_for,
    training_compositions,
)

TYPES = ("a100-40", "a100-80", "h100", "a6000")
SIX = (*TYPES, "a5000", "rtx-pro-6000")
DEMO_TYPES = ("demo-fast", "demo-slow")
EVERY = pytest.mark.parametrize("types", [TYPES, SIX, DEMO_TYPES, ("h100",)])
of = Composition.from_text


def gpus_by_type(composition: Composition) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in composition.nodes:
        found[node.gpu_type] += node.gpus
    return found


@EVERY
def test_they_are_the_same_every_time_and_all_different(types):
    found = training_compositions(types, 0)
    assert found == training_compositions(types, 0)
    assert found != training_compositions(types, 1)
    assert len(found) == range_for(types).num
    assert len({tuple(sorted(node_counts(one).items())) for one in found}) == len(found)


@EVERY
@pytest.mark.parametrize("seed", [0, 1])
def test_none_is_near_a_composition_of_the_evaluation(types, seed):
    found = training_compositions(types, seed)
    for rows in committed_sets().values():
        for row in rows:
            assert nearest(row.composition, found)[1] >= LEAST_DISTANCE


@EVERY
def test_they_stay_within_their_range(types):
    asked = range_for(types)
    for one in training_compositions(types, 0):
        assert asked.gpus[0] <= one.gpus <= asked.gpus[1]
        assert set(one.gpu_types) <= set(types)
        assert len(one.gpu_types) <= asked.kinds[1]
        assert {node.gpus for node in one.nodes} <= set(asked.node_gpus)


def test_there_are_as_many_as_the_paper_has_and_they_vary_as_its_do():
    found = training_compositions(TYPES, 0)
    assert len(found) == 94
    assert {len(one.gpu_types) for one in found} == {2, 3, 4}
    dominant = Counter(max(t, key=lambda name: t[name]) for t in map(gpus_by_type, found))
    assert set(dominant) == set(TYPES)
    assert min(dominant.values()) >= 94 // 4 - 8
    assert Counter(one.gpus >= 128 for one in found)[True] == pytest.approx(47, abs=4)
    sizes = [{node.gpus for node in one.nodes} for one in found]
    assert {1, 2, 4, 8} <= {min(s) for s in sizes if len(s) == 1}
    per_type = [
        {t: len({n.gpus for n in one.nodes if n.gpu_type == t}) for t in one.gpu_types}
        for one in found
    ]
    assert any(max(kinds.values()) > 1 for kinds in per_type)
    assert len(training_compositions(SIX, 0)) == 32


def test_the_range_follows_the_types():
    assert range_for(TYPES) is SIMULATION
    assert range_for(SIX) is HARDWARE
    assert range_for(DEMO_TYPES) is DEMO
    assert {len(one.gpu_types) for one in training_compositions(DEMO_TYPES, 0)} == {1, 2}


def test_a_range_with_too_few_compositions_is_refused():
    asked = replace(SIMULATION, num=9, kinds=(1, 1), gpus=(1, 2), node_gpus=(1,))
    with pytest.raises(InvalidComposition, match=r"no 9 different .* of 1 to 2 GPUs of h100"):
        training_compositions(("h100",), 0, asked)


def test_distance_counts_gpus_of_another_kind_and_doublings():
    assert distance(of("h100=4x4"), of("h100=4x4")) == 0
    assert distance(of("h100=4x4"), of("h100=2x8")) == 1
    assert distance(of("h100=4x4"), of("h100=2x4")) == 1
    assert distance(of("h100=3x4,a6000=1x4"), of("h100=1x4,a6000=3x4")) == pytest.approx(0.5)
    assert distance(of("h100=4x4"), of("a6000=8x4")) == 2


def test_distance_does_not_look_at_names_or_speed():
    slow = Composition((Node("b", "h100", 4, speed_factor=0.5), Node("a", "h100", 4)))
    assert distance(slow, of("h100=2x4")) == 0


def test_distance_is_symmetric():
    one, other = of("h100=3x4+5x1,a6000=2x8"), of("h100=7x2,a100-40=16x4")
    assert distance(one, other) == pytest.approx(distance(other, one))


def test_nearest_is_the_first_of_the_least_unlike():
    among = (of("h100=8x4"), of("h100=2x4"), of("a6000=4x4"))
    assert nearest(of("h100=4x4"), among) == (among[0], 1.0)
    assert nearest(of("h100=3x4"), among)[0] == among[1]
