"""Training compositions: as varied as the paper's, the same every time, none of the evaluation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from planner.cluster.composition import Composition
from planner.cluster.gpu_types import HARDWARE as HARDWARE_OF
from planner.errors import InvalidComposition
from planner.training.composition_sets import committed_sets
from planner.training.compositions import (
    DEMO,
    HARDWARE,
    LARGE,
    LARGE_MODEL,
    LEAST_DISTANCE,
    SIMULATION,
    WIDE,
    all_types,
    range_for,
    training_compositions,
    training_sets,
    types_named,
    usual_types,
)
from planner.training.likeness import Mix, node_counts
from tests.refusals import refused

TYPES = ("a100-40", "a100-80", "h100", "a6000")
SIX = (*TYPES, "a5000", "rtx-pro-6000")
DEMO_TYPES = ("demo-fast", "demo-slow")
HELD_OUT = [Mix.of(one.composition) for rows in committed_sets().values() for one in rows]
EVERY = pytest.mark.parametrize("types", [TYPES, SIX, DEMO_TYPES, ("h100",)])


@cache
def made(types, seed):
    return training_compositions(types, seed)


def gpus_by_type(composition: Composition) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in composition.nodes:
        found[node.gpu_type] += node.gpus
    return found


@EVERY
def test_they_are_the_same_every_time_and_all_different(types):
    found = made(types, 0)
    assert found == training_compositions(types, 0)
    assert found != made(types, 1)
    assert len(found) == range_for(types).num
    assert len({tuple(sorted(node_counts(one).items())) for one in found}) == len(found)


@EVERY
@pytest.mark.parametrize("seed", [0, 1])
def test_none_is_near_a_composition_of_the_evaluation(types, seed):
    found = [Mix.of(one) for one in made(types, seed)]
    for held_out in HELD_OUT:
        assert min(held_out.distance(one) for one in found) >= LEAST_DISTANCE


@EVERY
def test_they_stay_within_their_range(types):
    asked = range_for(types)
    for one in made(types, 0):
        assert asked.gpus[0] <= one.gpus <= asked.gpus[1]
        assert set(one.gpu_types) <= set(types)
        assert len(one.gpu_types) <= asked.kinds[1]
        assert {node.gpus for node in one.nodes} <= set(asked.node_gpus)


def test_there_are_as_many_as_the_paper_has_and_they_vary_as_its_do():
    found = made(TYPES, 0)
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
    assert len(made(SIX, 0)) == 32


def test_the_range_follows_the_types():
    assert range_for(TYPES) is SIMULATION
    assert range_for(SIX) is HARDWARE
    assert range_for(DEMO_TYPES) is DEMO
    assert range_for(usual_types(LARGE_MODEL), LARGE_MODEL) is LARGE
    assert {len(one.gpu_types) for one in made(DEMO_TYPES, 0)} == {1, 2}


@pytest.mark.parametrize(
    ("model", "types"),
    [("tiny-llama", DEMO_TYPES), ("gpt-neo-2.7b", SIX), ("llama3-8b", TYPES), ("qwen3-64b", TYPES)],
)
def test_a_model_has_its_usual_types(model, types):
    assert usual_types(model) == types


def test_a_policy_is_for_every_type_that_has_a_profile():
    for model in ("llama3-8b", "gpt-neo-2.7b", LARGE_MODEL):
        types = all_types(model)
        assert sorted(types) == sorted(HARDWARE_OF)
        assert types[: len(usual_types(model))] == usual_types(model)
        assert types_named(model, ",".join(sorted(types))) == types
    assert all_types("tiny-llama") == DEMO_TYPES


def test_types_beyond_the_usual_ones_join_them_in_a_set_of_their_own():
    types = all_types("llama3-8b")
    assert training_sets("llama3-8b", TYPES) == ((TYPES, SIMULATION),)
    assert training_sets("llama3-8b", types) == ((TYPES, SIMULATION), (types, WIDE))
    assert training_sets("llama3-8b", ("v100-16",)) == ((("v100-16",), WIDE),)
    found = training_compositions(types, 0, WIDE)
    held = Counter(name for one in found for name in one.gpu_types)
    assert set(held) == set(types)
    assert min(held.values()) >= len(found) / len(types)


def test_types_that_are_named_have_their_usual_order_whatever_that_of_the_text():
    usual = usual_types("gpt-neo-2.7b")
    assert types_named("gpt-neo-2.7b", ",".join(sorted(usual))) == usual
    assert types_named("llama3-8b", "v100,h100,a100-40,b200") == ("a100-40", "h100", "b200", "v100")


def test_a_range_with_too_few_compositions_is_refused():
    asked = replace(SIMULATION, num=9, kinds=(1, 1), gpus=(1, 2), node_gpus=(1,))
    with refused(InvalidComposition, "OutOfRange"):
        training_compositions(("h100",), 0, asked)
