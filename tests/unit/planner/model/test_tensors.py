"""Tensors of a model and how TP cuts them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.model.tensors import (
    held_tensors,
    layer_numel,
    layer_tensors,
    model_numel,
    model_tensors,
    shard_numel,
    tied_numel,
)
from tests.builders import MODEL


def test_every_tensor_is_named_by_its_layer_once():
    names = [tensor.name for tensor in model_tensors(MODEL)]
    assert len(set(names)) == len(names)
    assert {tensor.layer for tensor in model_tensors(MODEL)} == set(range(MODEL.layers + 2))


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_tp_cuts_sharded_tensors_evenly_and_leaves_norms_whole(tp):
    for tensor in model_tensors(MODEL):
        assert shard_numel(tensor, tp) * (1 if tensor.dim is None else tp) == tensor.numel
        assert (tensor.dim is None) == ("norm" in tensor.name)


def test_a_layer_counts_its_tensors():
    for layer in (0, 1, MODEL.layers + 1):
        whole = sum(tensor.numel for tensor in layer_tensors(MODEL, layer))
        assert layer_numel(MODEL, layer) == whole
        assert layer_numel(MODEL, layer, 2) < whole


def test_a_tied_head_has_no_weight_of_its_own_and_both_ends_hold_the_embeddings():
    tied = replace(MODEL, tied_head=True)
    last = tied.layers + 1
    assert [tensor.name for tensor in layer_tensors(tied, last)] == [f"{last}.norm"]
    names = [tensor.name for tensor in held_tensors(tied, range(last - 1, last + 1))]
    assert names[0] == "0.weight"
    assert [tensor.name for tensor in held_tensors(tied, range(last + 1))].count("0.weight") == 1
    assert model_numel(MODEL) - model_numel(tied) == tied_numel(tied) == 256 * tied.hidden
    assert layer_numel(tied, last, 2) == layer_numel(MODEL, last, 2)
    assert tied_numel(MODEL) == 0


def test_rows_that_no_token_has_are_known():
    padding = {t.name: t.padding for t in model_tensors(replace(MODEL, vocab=250))}
    last = MODEL.layers + 1
    assert {name for name, rows in padding.items() if rows} == {"0.weight", f"{last}.weight"}
    assert padding["0.weight"] == 6


def test_biases_are_cut_as_the_rows_that_they_are_added_to():
    biased = replace(MODEL, qkv_bias=True, o_bias=True, ffn_bias=True)
    dims = {t.name.split(".")[1]: t.dim for t in layer_tensors(biased, 1) if "_bias" in t.name}
    cut = dict.fromkeys(("q_bias", "k_bias", "v_bias", "gate_bias", "up_bias"), 0)
    assert dims == {**cut, "o_bias": None, "down_bias": None}
