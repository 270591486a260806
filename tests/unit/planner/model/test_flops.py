"""planner/model/flops.py: the arithmetic of a model, against numbers that are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.model.catalogue import find_model
from planner.model.flops import flops_per_token
from planner.model.shape import ModelShape


def test_a_small_model_by_hand():
    model = ModelShape(name="m", layers=2, hidden=8, heads=2, kv_heads=1, ffn=16, vocab=128)
    attention = 8 * 8 + 2 * 4 * 8 + 8 * 8
    block = attention + 3 * 8 * 16
    assert flops_per_token(model, 10) == 6 * (2 * block + 128 * 8) + 12 * 2 * 8 * 10


def test_llama_3_8b_needs_six_operations_for_each_parameter_that_multiplies():
    model = find_model("llama3-8b")
    attention = 12 * 32 * 4096 * 2048
    # 8.03e9 parameters, 0.53e9 of them in the embedding
    assert flops_per_token(model, 2048) - attention == pytest.approx(6 * 7.5e9, rel=0.01)


def test_a_tied_head_multiplies_as_one_of_its_own_does():
    model = find_model("tiny-llama")
    assert flops_per_token(replace(model, tied_head=True), 8) == flops_per_token(model, 8)


def test_of_experts_those_count_that_a_token_visits():
    model = find_model("mixtral-8x7b")
    all_of_them = replace(model, experts=replace(model.experts, per_token=model.experts.count))
    assert flops_per_token(model, 8) < 0.35 * flops_per_token(all_of_them, 8)
