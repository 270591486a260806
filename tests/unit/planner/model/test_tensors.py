"""Tensors of a model and how TP cuts them."""

from __future__ import annotations

import pytest

from planner.model.tensors import layer_numel, layer_tensors, model_tensors, shard_numel
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
