"""Operators of a layer: work that adds up, memory by the known formula, experts by their tiling."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.gpu_types import find_gpu
from planner.model.catalogue import find_model
from planner.model.tensors import layer_numel
from planner.profiles.operators import (
    Shape,
    attention_seconds,
    backward_seconds,
    forward_seconds,
    layer_work,
    reduce_seconds,
)

H100, A100 = find_gpu("h100"), find_gpu("a100-80")
NEO, LLAMA, MIXTRAL = (find_model(n) for n in ("gpt-neo-2.7b", "llama3-8b", "mixtral-8x7b"))


@pytest.mark.parametrize("model", [NEO, LLAMA])
def test_products_of_a_block_do_two_operations_per_parameter_and_token(model):
    shape = Shape(tp=1, micro_batch=2, sequence_length=2048, value_bytes=2)
    flops = sum(operator.flops for operator in layer_work(model, "block", shape).products)
    assert flops == pytest.approx(2 * shape.tokens * layer_numel(model, 1), rel=2e-3)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("parallel", [False, True])
def test_what_a_block_keeps_is_the_formula_of_sequence_parallelism(tp, parallel):
    """Korthikanti et al.: s b h (10 + 24/t + 5 a s / (h t)); with it the 10 is over t too."""
    s, b, h, a = 2048, 2, NEO.hidden, NEO.heads
    work = layer_work(
        NEO,
        "block",
        Shape(tp=tp, micro_batch=b, sequence_length=s, value_bytes=2, sequence_parallel=parallel),
    )
    whole = 10 / tp if parallel else 10
    assert work.kept_bytes == pytest.approx(s * b * h * (whole + 24 / tp))
    assert work.core_kept_bytes == pytest.approx(5 * a * s * s * b / tp)
    assert work.input_bytes == 2 * s * b * h / (tp if parallel else 1)


def test_flash_attention_keeps_no_scores_and_moves_none():
    flash = replace(NEO, scores="flash")
    with_scores, without = (
        layer_work(model, "block", Shape(tp=1, micro_batch=2, sequence_length=2048, value_bytes=2))
        for model in (NEO, flash)
    )
    assert without.core_kept_bytes < with_scores.core_kept_bytes / 100
    assert attention_seconds(without, A100) < attention_seconds(with_scores, A100) / 3


def test_backward_takes_twice_the_products():
    work = layer_work(
        LLAMA, "block", Shape(tp=1, micro_batch=8, sequence_length=2048, value_bytes=2)
    )
    ratio = backward_seconds(work, A100) / forward_seconds(work, A100)
    assert 1.9 < ratio < 2.1


def test_a_tiny_layer_takes_as_long_as_its_launches():
    work = layer_work(NEO, "block", Shape(tp=8, micro_batch=1, sequence_length=64, value_bytes=2))
    count = len(work.products) + len(work.elementwise) + len(work.core_forward)
    launches = count + len(work.reduced_bytes)
    assert forward_seconds(work, A100) == launches * A100.host_forward_s


def test_tp_divides_the_work_and_reduces_twice_a_pass():
    one, four = (
        layer_work(LLAMA, "block", Shape(tp=tp, micro_batch=8, sequence_length=2048, value_bytes=2))
        for tp in (1, 4)
    )
    speedup = forward_seconds(one, H100) / forward_seconds(four, H100)
    assert 3 < speedup < 4
    assert one.reduced_bytes == ()
    assert four.reduced_bytes == (8 * 2048 * 4096 * 2,) * 2
    assert reduce_seconds(four.reduced_bytes, H100, 4) > 0


def test_a_token_visits_two_experts_whatever_the_tiling():
    def flops(tp, ep, etp):
        work = layer_work(
            MIXTRAL,
            "moe_block",
            Shape(tp=tp, micro_batch=2, sequence_length=2048, value_bytes=2, ep=ep, etp=etp),
        )
        return sum(operator.flops for operator in work.products)

    dense = layer_numel(MIXTRAL, 1) - 6 / 8 * 1.409e9
    assert flops(1, 1, 1) == pytest.approx(2 * 4096 * dense, rel=2e-2)
    assert flops(4, 4, 1) == pytest.approx(flops(4, 1, 4), rel=1e-6)


def test_shared_experts_and_latent_attention_are_counted():
    model = find_model("deepseek-v3-like")
    experts = model.experts
    work = layer_work(
        model, "moe_block", Shape(tp=1, micro_batch=1, sequence_length=2048, value_bytes=2)
    )
    flops = sum(operator.flops for operator in work.products)
    active = layer_numel(model, 61) - (experts.count - experts.per_token) * 3 * 7168 * 2048
    assert flops == pytest.approx(2 * 2048 * active, rel=1e-2)


@pytest.mark.parametrize("kind", ["embedding", "head"])
@pytest.mark.parametrize("model", [NEO, LLAMA, MIXTRAL])
def test_the_ends_cost_something_and_the_head_most(model, kind):
    work = layer_work(model, kind, Shape(tp=2, micro_batch=4, sequence_length=2048, value_bytes=2))
    assert forward_seconds(work, A100) > 0
    assert backward_seconds(work, A100) > 0
    head = layer_work(
        model, "head", Shape(tp=2, micro_batch=4, sequence_length=2048, value_bytes=2)
    )
    assert forward_seconds(head, A100) >= forward_seconds(work, A100)
