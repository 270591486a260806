"""worker/engine/optimizer.py: the update of AdamW, to the bit, whatever cut the tensors are in."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.model.tensors import Tensor
from planner.plans.ranks import RankMap
from tests.builders import tiled
from tests.equal_tensors import are_equal
from tests.families import MIXTURES
from tests.peak_memory import peak_bytes
from tests.unit.worker.changes import SPEC
from tests.unit.worker.changes import plan as of_plan
from worker.checkpoint.start_source import FirstWeights
from worker.contract import TrainingSpec
from worker.control.activity import Activity
from worker.engine import optimizer
from worker.engine.optimizer import Recipe, StageUpdate, mean_visits, recipe_of, update_
from worker.engine.seam import Progress, StageBuild
from worker.errors import HalfUpdated
from worker.state.shards import TargetShards
from worker.state.still import StillState

RECIPE = Recipe(betas=(0.8, 0.97), epsilon=1e-6, weight_decay=0.1, gradient_clip=10.0)
NORM = 3.0
SHAPES = ((16, 16), (64, 16), (16,), (33, 7))
STEPS = 5


def numbers(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def fresh():
    """Weights with moments of zero."""
    weights = [numbers(shape, index) for index, shape in enumerate(SHAPES)]
    return [(weight, torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]


def gradients_of(step):
    return [numbers(shape, 100 * (step + 1) + index) for index, shape in enumerate(SHAPES)]


def rate_of(step):
    return 1e-3 * (step + 1)


def update_all(shards, gradients, rate, updates, norm=NORM):
    for parts, gradient in zip(shards, gradients, strict=True):
        update_(parts, gradient, norm, rate, updates, RECIPE)


@pytest.mark.slow  # torch's optimizer imports the compiler stack
@pytest.mark.parametrize("foreach", [False, True])
def test_several_steps_are_those_of_torchs_adamw_but_for_rounding(foreach):
    """Each of at most 14 operations of a step rounds once, torch's as often or less."""
    shards = fresh()
    adam = torch.optim.AdamW(
        [torch.nn.Parameter(weight.clone()) for weight, *_ in shards],
        betas=RECIPE.betas,
        eps=RECIPE.epsilon,
        weight_decay=RECIPE.weight_decay,
        foreach=foreach,
    )
    (group,) = adam.param_groups
    for step in range(STEPS):
        gradients = gradients_of(step)
        update_all(shards, gradients, rate_of(step), step)
        group["lr"] = rate_of(step)
        for parameter, gradient in zip(group["params"], gradients_of(step), strict=True):
            parameter.grad = gradient
        adam.step()
        for (weight, mean, square), parameter in zip(shards, group["params"], strict=True):
            state = adam.state[parameter]
            most = 2 * 14 * STEPS * 2.0**-24
            for ours, torchs in (
                (weight, parameter),
                (mean, state["exp_avg"]),
                (square, state["exp_avg_sq"]),
            ):
                assert (ours - torchs).abs().max() <= most * torchs.abs().max()


@given(st.data())
def test_a_tensor_has_the_bits_of_its_rows_updated_on_their_own(data):
    """So that a rank with another cut, or a whole copy, never drifts apart."""
    whole, pieces = fresh(), fresh()
    cuts = [
        sorted({0, rows, *data.draw(st.lists(st.integers(1, rows), max_size=3))})
        for rows, *_ in SHAPES
    ]

    def cut(tensors):
        return [
            tensor[start:stop]
            for tensor, points in zip(tensors, cuts, strict=True)
            for start, stop in pairwise(points)
        ]

    rows = list(zip(*(cut(part) for part in zip(*pieces, strict=True)), strict=True))
    for step in range(STEPS):
        update_all(whole, gradients_of(step), rate_of(step), step)
        update_all(rows, cut(gradients_of(step)), rate_of(step), step)
    for one, other in zip(whole, pieces, strict=True):
        assert are_equal(one, other)


def test_columns_that_are_not_contiguous_have_the_same_bits():
    """Half of the columns of a tensor, as a row-parallel shard is a view of."""
    whole, halves = fresh()[0], fresh()[0]
    (gradient, *_) = gradients_of(0)
    update_(whole, gradient, NORM, 1e-3, 0, RECIPE)
    for columns in (slice(0, 8), slice(8, 16)):
        parts = tuple(part[:, columns] for part in halves)
        update_(parts, gradient[:, columns], NORM, 1e-3, 0, RECIPE)
    assert are_equal(whole, halves)


@pytest.mark.parametrize("elements", [1, 7, 64])
def test_it_works_in_chunks_and_the_bits_do_not_show_it(elements, monkeypatch):
    whole, chunked = fresh(), fresh()
    update_all(whole, gradients_of(0), 1e-3, 0)
    monkeypatch.setattr(optimizer, "HOST_CHUNK", elements)
    update_all(chunked, gradients_of(0), 1e-3, 0)
    for one, other in zip(whole, chunked, strict=True):
        assert are_equal(one, other)


@pytest.mark.parametrize("clipped", [False, True])
def test_it_takes_memory_of_one_chunk(clipped, monkeypatch):
    monkeypatch.setattr(optimizer, "HOST_CHUNK", 256)
    (parts, gradient), norm = (fresh()[1], gradients_of(0)[1]), 40.0 if clipped else 1.0
    assert parts[0].numel() > 2 * 256
    scalars_bytes = 64  # of torch, for constants
    most = 4 * 256 + scalars_bytes
    assert peak_bytes(lambda: update_(parts, gradient, norm, 1e-3, 0, RECIPE)) <= most


def test_it_counts_updates_and_not_steps():
    """The bias correction of the first update moves each weight by the rate, at whatever step."""
    shards, recipe = fresh(), RECIPE._replace(weight_decay=0.0)
    before = [weight.clone() for weight, *_ in shards]
    for parts, gradient in zip(shards, gradients_of(0), strict=True):
        update_(parts, gradient, NORM, 1e-3, 0, recipe)
    for (weight, *_), was in zip(shards, before, strict=True):
        assert (weight - was).abs().max() <= 1.001e-3
    later = fresh()
    update_all(later, gradients_of(0), 1e-3, 9)
    assert not torch.equal(later[0][0], shards[0][0])


@pytest.mark.parametrize(("norm", "scale"), [(0.5, 1.0), (10.0, 1.0), (40.0, 0.25)])
def test_only_a_norm_beyond_the_limit_makes_the_gradient_smaller(norm, scale):
    """The first mean is the gradient times 1 - beta1."""
    (parts, *_), (gradient, *_) = fresh(), gradients_of(0)
    update_(parts, gradient, norm, 1e-3, 0, RECIPE)
    assert torch.allclose(parts[1], 0.2 * scale * gradient)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_skips_the_update(norm):
    shards = fresh()
    update_all(shards, gradients_of(0), 1e-3, 0, norm)
    for one, other in zip(shards, fresh(), strict=True):
        assert are_equal(one, other)


def test_only_matrices_decay():
    spec = TrainingSpec(
        model="m", data="d", global_batch=1, sequence_length=8, steps=1, weight_decay=0.1
    )
    assert recipe_of(spec, Tensor("1.q", (8, 8), 0)).weight_decay == 0.1
    assert recipe_of(spec, Tensor("1.norm1", (8,), None)).weight_decay == 0.0
    assert recipe_of(spec, Tensor("1.up_bias", (8,), 0)).weight_decay == 0.0


def test_it_leaves_the_gradients_and_the_storages_as_they_are():
    shards, gradients = fresh(), gradients_of(0)
    places = [part.data_ptr() for parts in shards for part in parts]
    update_all(shards, gradients, 1e-3, 0, norm=40.0)
    assert [part.data_ptr() for parts in shards for part in parts] == places
    assert are_equal(gradients, gradients_of(0))


def build_of(plan, spec):
    """The first rank of a plan of a model whose experts have a bias."""
    model, seat = MIXTURES["deepseek-v3"], RankMap.of(plan).seats[0]
    fill = FirstWeights.of(model, spec).fill
    target = TargetShards.first(model, seat, fill, Activity(), spec.precision)
    return StageBuild(
        model=model,
        spec=spec,
        plan=plan,
        seat=seat,
        world=None,
        shards=target.shards,
        buffers=target.buffers,
        activity=Activity(),
        still=StillState(),
    )


def test_gradients_are_unscaled_where_a_rank_owns_no_row_too():
    """It sums and squares them for others."""
    plan = tiled("1x4", ep=1, etp=1, replicas=16).with_zero(1)
    build = build_of(plan, SPEC)
    assert "4.router" not in {name for name, parts in build.shards.items() if len(parts[0])}
    for gradient in build.buffers.gradients.values():
        gradient.fill_(8.0)
    StageUpdate(build).unscale_(16.0)
    for name, gradient in build.buffers.gradients.items():
        assert set(gradient.flatten().tolist()) == {8.0 if name.endswith("router_bias") else 0.5}


class NoRoomFrom:
    """torch, whose allocations fail from the one of this number on."""

    def __init__(self, number):
        self.left = number

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, *shape, **how):
        self.left -= 1
        if self.left < 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.empty(*shape, **how)


@pytest.mark.parametrize("number", [0, 1])
def test_memory_that_ends_leaves_the_state_of_before_or_none_is_needed(monkeypatch, number):
    build = build_of(of_plan("1x4"), SPEC)
    before = {name: [part.clone() for part in parts] for name, parts in build.shards.items()}
    monkeypatch.setattr(optimizer, "torch", NoRoomFrom(number))
    if number == 0:
        with pytest.raises(torch.OutOfMemoryError):
            StageUpdate(build).apply_(1.0, 1e-3, Progress())
    else:
        StageUpdate(build).apply_(1.0, 1e-3, Progress())
    same = [are_equal(parts, before[name]) for name, parts in build.shards.items()]
    assert all(same) == (number == 0)


def test_an_update_that_breaks_in_the_middle_says_that_no_state_is_left(monkeypatch):
    build = build_of(of_plan("1x4"), SPEC)
    calls = []

    def broken(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise RuntimeError("a kernel failed")

    monkeypatch.setattr(optimizer, "update_", broken)
    with pytest.raises(HalfUpdated, match="the update of step 7 broke: RuntimeError: a kernel"):
        StageUpdate(build).apply_(1.0, 1e-3, Progress(step=7))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_moves_biases_by_the_rate_and_a_skipped_one_changes_nothing(precision):
    spec = SPEC.model_copy(update={"precision": precision, "router_bias_rate": 0.25})
    build = build_of(of_plan("1x4"), spec)
    mean = mean_visits(build.model, spec)
    visits = torch.tensor([0.0, mean, mean + 1, mean - 1, 2 * mean, mean, 0.0, 3.0])
    build.buffers.gradients["4.router_bias"].copy_(visits)
    before = {name: [part.clone() for part in parts] for name, parts in build.shards.items()}
    update = StageUpdate(build)
    update.apply_(math.nan, 1e-3, Progress())
    for name, parts in build.shards.items():
        assert are_equal(parts, before[name])
    update.apply_(1.0, 1e-3, Progress())
    bias, *moments = build.shards["4.router_bias"]
    assert bias.tolist() == [0.25, 0.0, -0.25, 0.25, -0.25, 0.0, 0.25, 0.25 if mean > 3 else -0.25]
    assert not any(moment.any() for moment in moments)
    assert build.buffers.weights["4.router_bias"].data_ptr() == bias.data_ptr()
