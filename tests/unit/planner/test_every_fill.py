"""Fills hold the model and fit; only a recomputation that is worse in all goes."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest

from planner.every_fill import EveryFill, every_split
from planner.memory import StageSlot, fits
from tests.builders import MODEL, demo_profile, workload
from tests.oracle.instances import instances

MOE = next(i for i in instances() if i.is_moe and i.request.workload.recompute == "none")
STRUCTURE = (("demo-fast", 2), ("demo-slow", 1), ("demo-fast", 1))


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_every_split_is_met_once(depth):
    splits = list(every_split(depth, 6))
    assert len(set(splits)) == len(splits) == comb(5, depth - 1)
    assert all(sum(split) == 6 and min(split) >= 1 for split in splits)


def test_every_fill_holds_the_model_and_fits_up_to_its_most_micro_batches():
    asked, profile = workload(4), demo_profile()
    found = EveryFill(asked, profile, (1, 2, 4), allow_ep=True).of(STRUCTURE, 1)
    assert {fill.micro_batch for fill in found} == {1, 2, 4}
    for fill in found:
        runs = [stage[0].layers for stage in fill.choices]
        assert [i for run in runs for i in run] == list(range(MODEL.layers + 2))
        for index, (choice,) in enumerate(fill.choices):
            stage = choice.stage
            slot = StageSlot(stage.gpu_type, stage.tp, fill.micro_batch, choice.most, 3, index)
            assert fits(asked, profile, slot, stage.layers)
            more = replace(slot, micro_batches=choice.most + 1)
            assert choice.most == 4 or not fits(asked, profile, more, stage.layers)


def test_a_model_that_fits_nowhere_has_no_fill_and_the_least_shortage_is_known():
    profile = demo_profile()
    tight = {name: replace(kind, memory_bytes=600_000) for name, kind in profile.types.items()}
    fills = EveryFill(workload(4), replace(profile, types=tight), (1, 2), allow_ep=True)
    assert not fills.of((("demo-fast", 1),), 1)
    alone = fills.shortage
    assert not fills.of((("demo-fast", 2), ("demo-fast", 2)), 1)
    assert 0 < fills.shortage[0] < alone[0]


def test_experts_are_tiled_in_every_way_that_cuts_experts_and_devices():
    asked, profile = MOE.request.workload, MOE.profile
    fills = EveryFill(asked, profile, (profile.micro_batches("type-a")[0],), allow_ep=True)
    found = fills.of((("type-a", 2),), 2)
    tilings = {(c.stage.ep, c.stage.expert_tp) for fill in found for c in fill.choices[0]}
    wanted = {(e, t) for e in (1, 2, 4) for t in (1, 2, 4) if e * t <= 4}
    assert tilings <= {(e, t) for e, t in wanted if asked.model.experts.count % e == 0}
    assert len(tilings) > 1


def test_without_ep_experts_are_cut_as_everything_else():
    profile = MOE.profile
    fills = EveryFill(
        MOE.request.workload, profile, profile.micro_batches("type-a"), allow_ep=False
    )
    found = fills.of((("type-a", 2),), 2)
    assert not [c for fill in found for c in fill.choices[0] if c.stage.is_tiled]


def test_of_the_recomputations_those_stay_that_allow_more_micro_batches():
    """A stand-in for a job that leaves recomputation to the planner."""
    asked = MOE.request.workload
    object.__setattr__(asked_auto := replace(asked), "recompute", "auto")
    profile = MOE.profile
    roomy = {n: replace(kind, memory_bytes=10**12) for n, kind in profile.types.items()}
    sizes = profile.micro_batches("type-a")
    structure = (("type-a", 1), ("type-a", 1))
    free = EveryFill(asked_auto, replace(profile, types=roomy), sizes, allow_ep=False)
    assert {c.stage.recompute for f in free.of(structure, 1) for s in f.choices for c in s} == {
        "none"
    }
    plain = EveryFill(asked, profile, sizes, allow_ep=False).of(structure, 1)
    auto = EveryFill(asked_auto, profile, sizes, allow_ep=False).of(structure, 1)
    assert len(auto) >= len(plain)
    for fill in auto:
        for stage in fill.choices:
            ordered = sorted(stage, key=lambda choice: choice.work_s)
            assert [c.most for c in ordered] == sorted({c.most for c in ordered})
