"""What brute force enumerates: fills, placements up to exchange, and sharings; none is left out."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster.composition import Composition, Node
from planner.cost.memory import StageSlot, fits
from planner.plans.plan import FilledTemplate, Plan, Stage, faults
from tests.builders import MODEL, demo_profile, nodes, workload
from tests.oracle.every_fill import EveryFill
from tests.oracle.every_placement import every_placement, placed_stages
from tests.oracle.every_sharing import Runner, best_sharing
from tests.oracle.instances import instances

FAST = "demo-fast"
STRUCTURE = (("demo-fast", 2), ("demo-slow", 1), ("demo-fast", 1))
MOE = next(i for i in instances() if i.is_moe and i.request.workload.recompute == "none")
BAGS = {
    "one stage, three replicas": ((((FAST, 1),), 3),),
    "two stages, two replicas": ((((FAST, 1), (FAST, 1)), 2),),
    "TP 2 beside TP 1": ((((FAST, 2), (FAST, 1)), 1), (((FAST, 1),), 2)),
    "two equal templates": ((((FAST, 1), (FAST, 1)), 1), (((FAST, 1), (FAST, 1)), 1)),
}


def legal(bag, composition):
    """Every assignment of nodes, as rows of replicas."""
    slots = [tp for structure, n in bag for _ in range(n) for _, tp in structure]
    for flat in product(range(len(composition.nodes)), repeat=len(slots)):
        taken = [0] * len(composition.nodes)
        for node, tp in zip(flat, slots, strict=True):
            taken[node] += tp
        if all(t <= n.gpus for t, n in zip(taken, composition.nodes, strict=True)):
            where, rest = [], list(flat)
            for structure, n in bag:
                rows = []
                for _ in range(n):
                    rows.append(tuple(rest[: len(structure)]))
                    del rest[: len(structure)]
                where.append(tuple(rows))
            yield tuple(where)


def names(bag, where, composition, *, ordered):
    """What is left of a placement when nodes that are alike have no names of their own."""
    rows = []
    for renamed in renamings(composition):
        templates = [
            (outline, *(rs if ordered else sorted(rs)))
            for outline, rs in zip(
                bag, [[tuple(renamed[n] for n in r) for r in rows] for rows in where], strict=True
            )
        ]
        rows.append(sorted(templates))
    return repr(min(rows))


def renamings(composition):
    kinds = [(n.gpu_type, n.gpus, n.speed_factor) for n in composition.nodes]
    for target in product(range(len(kinds)), repeat=len(kinds)):
        if len(set(target)) == len(kinds) and all(
            kinds[i] == kinds[t] for i, t in enumerate(target)
        ):
            yield target


@pytest.mark.parametrize("ordered", [False, True], ids=["replicas alike", "replicas in order"])
@pytest.mark.parametrize("text", ["fast-0:2 fast-1:2 fast-2:1", "fast-0:4 fast-1:1"])
@pytest.mark.parametrize("bag", BAGS.values(), ids=BAGS)
def test_every_placement_is_met_once_up_to_exchange(bag, text, ordered):
    composition = nodes(text)
    met = [
        names(bag, where, composition, ordered=ordered)
        for where in every_placement(bag, composition, ordered=ordered)
    ]
    all_of_them = {
        names(bag, where, composition, ordered=ordered) for where in legal(bag, composition)
    }
    assert set(met) == all_of_them
    assert ordered or len(met) <= 2 * len(all_of_them)


def test_a_straggler_is_not_like_other_nodes():
    composition = Composition(
        (
            Node(name="a", gpu_type=FAST, gpus=1),
            Node(name="b", gpu_type=FAST, gpus=1, speed_factor=0.8),
        )
    )
    bag = ((((FAST, 1),), 1),)
    assert list(every_placement(bag, composition, ordered=False)) == [(((0,),),), (((1,),),)]


def test_placed_stages_are_without_fault():
    composition = nodes("fast-0:2 fast-1:2")
    bag = ((((FAST, 2), (FAST, 1)), 1),)
    template = FilledTemplate(
        (Stage(gpu_type=FAST, tp=2, layers=3), Stage(gpu_type=FAST, tp=1, layers=3)), 1, (4,)
    )
    for where in every_placement(bag, composition, ordered=False):
        plan = Plan((template,), placed_stages((template,), where, composition))
        assert not faults(plan, workload(4), composition)


SIZES, MOST = st.sampled_from([1, 2, 3]), st.sampled_from([1, 3, 9])
RUNNERS = st.builds(Runner, SIZES, st.floats(0.1, 1), st.floats(1, 2), MOST)


@given(st.integers(1, 14), st.lists(RUNNERS, min_size=1, max_size=3), st.floats(1, 9))
def test_no_sharing_ends_earlier(global_batch, runners, limit_s):
    ranges = [range(1, min(r.most, global_batch // r.micro_batch) + 1) for r in runners]
    ends = [
        max(runner.seconds(m) for runner, m in zip(runners, counts, strict=True))
        for counts in product(*ranges)
        if sum(r.micro_batch * m for r, m in zip(runners, counts, strict=True)) == global_batch
    ]
    best = min(ends, default=math.inf)
    shares = best_sharing(global_batch, runners, limit_s)
    assert (shares is not None) == (best < limit_s)
    if shares is not None:
        trained = sum(r.micro_batch * m for r, m in zip(runners, shares, strict=True))
        assert trained == global_batch
        assert all(1 <= m <= r.most for r, m in zip(runners, shares, strict=True))
        end_s = max(r.seconds(m) for r, m in zip(runners, shares, strict=True))
        assert math.isclose(end_s, best, rel_tol=1e-9)


def test_a_replica_that_cannot_start_in_time_shares_nothing():
    assert best_sharing(2, [Runner(1, 0.5, 1.0, 9), Runner(1, 0.5, 5.0, 9)], 4.0) is None


def test_every_fill_holds_the_model_and_fits_up_to_its_most_micro_batches():
    asked, profile = workload(4), demo_profile()
    found = EveryFill(asked, profile, (1, 2, 4), allow_ep=True).of(STRUCTURE, 1)
    assert {fill.micro_batch for fill in found} == {1, 2, 4}
    for fill in found:
        runs = [stage[0].layers for stage in fill.choices]
        assert [i for run in runs for i in run] == list(range(MODEL.layers + 2))
        for index, (choice,) in enumerate(fill.choices):
            stage = choice.stage
            slot = StageSlot(
                gpu_type=stage.gpu_type,
                tp=stage.tp,
                micro_batch=fill.micro_batch,
                micro_batches=choice.most,
                depth=3,
                index=index,
            )
            assert fits(asked, profile, slot, stage.layers)
            more = replace(slot, micro_batches=choice.most + 1)
            assert choice.most == 4 or not fits(asked, profile, more, stage.layers)


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
