"""Measured layers: every kind has times and bytes, shards are smaller, others are refused."""

from __future__ import annotations

import pytest

from planner.errors import InvalidWorkload
from planner.model.catalogue import find_model
from tests.refusals import refused
from worker.device.device import CPU
from worker.profile.bench import Bench
from worker.profile.layers import check_model, measure_layer

TINY = find_model("tiny-llama")
BENCH = Bench(CPU, 1)


def measured(kind: str, tp: int = 1, b: int = 1, precision: str = "fp32"):
    return measure_layer(BENCH, TINY, kind, tp, b, 32, precision, lambda size: size / 1e9)


@pytest.mark.parametrize("kind", ["embedding", "block", "head"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_kind_of_layer_has_times_and_bytes(kind, precision):
    cost = measured(kind, precision=precision)
    assert cost.forward_s > 0
    assert cost.activation_bytes > 0
    assert cost.tp_communication_s == 0
    assert (cost.attention_s > 0) == (kind == "block")


def test_what_is_kept_grows_with_the_micro_batch_and_shrinks_with_tp():
    one, two, sharded = measured("block"), measured("block", b=2), measured("block", tp=2)
    assert 1.8 * one.activation_bytes < two.activation_bytes < 2.1 * one.activation_bytes
    assert sharded.activation_bytes < one.activation_bytes
    assert sharded.tp_communication_s == pytest.approx(4 * 32 * 64 * 4 / 1e9)


def test_layers_that_the_worker_does_not_have_are_refused():
    with refused(InvalidWorkload, "Unsupported"):
        check_model(find_model("deepseek-v3-like"))
    for name in ("gpt-neo-2.7b", "qwen3-32b", "llama3-8b", "mixtral-8x7b"):
        check_model(find_model(name))
