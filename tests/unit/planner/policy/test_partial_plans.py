"""Masks and what is left: exact for small clusters, by looking at every way to pack."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster.gpu_limits import GpuLimits
from planner.estimator.build_tables import pricing_of
from planner.policy.environment import Environment, Episodes, no_limits
from planner.policy.gpus_left import gpus_left, replicas_with
from planner.policy.rollouts import UniformActor, play
from planner.policy.schema import FeatureSchema
from tests.builders import demo_profile, nodes, workload
from tests.unit.planner.policy.conftest import environment_on

SCHEMA = FeatureSchema(("a100-40", "h100"), (1, 2, 4, 8), 24, 8)


def packs(nodes, groups):
    """Whether TP groups fit into nodes; every way is tried."""
    if not groups:
        return True
    first, rest = groups[0], groups[1:]
    return any(
        packs([*nodes[:i], node - first, *nodes[i + 1 :]], rest)
        for i, node in enumerate(nodes)
        if node >= first
    )


@given(
    size=st.sampled_from([2, 3, 4, 6]),
    nodes=st.integers(1, 3),
    groups=st.lists(st.sampled_from([1, 2, 4]), max_size=5),
)
def test_a_group_is_left_exactly_when_some_packing_has_room_for_it(size, nodes, groups):
    space = environment_on(f"h100={nodes}x{size}", SCHEMA).space
    groups = [tp for tp in groups if tp <= size]
    used = np.array([groups.count(int(tp)) for tp in space.tp])
    taken = np.zeros(len(space.tp), np.int64)
    left = np.zeros(len(space.tp), np.int64)
    if not packs([size] * nodes, sorted(groups, reverse=True)):
        return
    gpus_left(space, taken, used, left)
    for option, tp in enumerate(space.tp):
        possible = packs([size] * nodes, sorted([*groups, int(tp)], reverse=True))
        assert (left[option] >= tp) == possible


def test_a_template_fits_as_often_as_its_groups_do(environment):
    space = environment.space
    none = np.zeros(len(space.tp), np.int64)
    h100 = int(np.flatnonzero(space.class_type == 1)[0])
    first = int(space.first_option[h100])
    assert replicas_with(space, none, none, h100, first) == 8
    assert replicas_with(space, none, none, h100, first + 1) == 4
    used = none.copy()
    used[first] = 1
    assert replicas_with(space, none, used, h100, first) == 4


def test_before_the_first_template_nobody_can_stop(environment):
    view = Episodes([environment], 2).observe_depths(np.array([0, 1]))
    assert not view.mask[:, 0].any()
    assert view.mask[:, 1:16].all()
    assert not view.mask[:, 16:].any()  # 15 GPUs


def test_stages_are_offered_only_where_the_later_ones_keep_a_gpu(environment):
    episodes = Episodes([environment], 1)
    rows = np.array([0])
    episodes.open(rows, np.array([15]))
    mask = episodes.observe_stages(rows).mask[0]
    assert mask[:, 0].all()  # TP 1
    assert not mask[:, 1:].any()


def test_uniform_rollouts_always_end_in_plans_that_pack(environment):
    episodes = Episodes([environment], 64)
    play(episodes, UniformActor(np.random.default_rng(3)))
    assert not len(episodes.live)
    assert any(episodes.templates(row) for row in range(64))
    for row, seconds in enumerate(episodes.seconds):
        assert bool(episodes.templates(row)) == np.isfinite(seconds)


def test_without_tp_1_in_the_profile_every_construction_has_a_choice_left():
    profile = demo_profile()
    fewer = replace(profile, layers={k: cost for k, cost in profile.layers.items() if k[2] != 1})
    mixed = nodes("fast-0:2 fast-1:2 fast-2:3 slow-0:3 slow-1:1")
    pricing = pricing_of(workload(), mixed, fewer)
    assert pricing is not None
    assert set(pricing.tables.option_tp.tolist()) == {2}
    schema = FeatureSchema(("demo-fast", "demo-slow"), (1, 2), 24, 8)
    environment = Environment.of(pricing, schema, no_limits(24, 8))
    assert np.isfinite(environment.space.summary).all()
    episodes = Episodes([environment], 200)
    actor = _Watching(np.random.default_rng(0))
    play(episodes, actor)
    assert actor.asked > 200
    assert actor.stuck == 0


class _Watching(UniformActor):
    """Counts stages that were to be chosen, and those for which nothing was allowed."""

    asked = stuck = 0

    def stages(self, view):
        self.asked += len(view.rows)
        self.stuck += int((~view.mask.any(axis=(1, 2))).sum())
        return super().stages(view)


@pytest.mark.parametrize(
    "limits",
    [GpuLimits(7), GpuLimits(None, (("h100", 3),)), GpuLimits(9, (("a100-40", 2), ("h100", 8)))],
)
def test_within_limits_every_construction_has_a_choice_left_and_packs(limits):
    environment = environment_on("h100=2x4+1x2,a100-40=2x2+3x1", SCHEMA, max_gpus=limits)
    episodes = Episodes([environment], 100)
    actor = _Watching(np.random.default_rng(0))
    play(episodes, actor)
    assert (actor.asked > 100, actor.stuck) == (True, 0)
    kinds = [environment.pricing.options[option][0] for option in range(len(environment.space.tp))]
    for row in range(100):
        for template in episodes.templates(row):
            once = Counter[str]()
            for option in template:
                once[kinds[option]] += int(environment.space.tp[option])
            assert limits.allows(once)
