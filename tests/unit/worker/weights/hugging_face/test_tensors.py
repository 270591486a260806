"""hugging_face/tensors.py, families.py: names and shapes are those that `transformers` writes."""

from __future__ import annotations

import dataclasses

import pytest

from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from tests.refusals import refused
from tests.unit.worker.weights.hugging_face.golden import KINDS, golden, model_of
from worker.errors import InvalidWeights
from worker.weights.hugging_face.families import FAMILIES
from worker.weights.hugging_face.tensors import family_of, stored_tensors


def test_every_family_has_a_golden_list():
    assert sorted(FAMILIES) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_shapes_are_those_of_save_pretrained(tmp_path, kind):
    found = stored_tensors(model_of(kind, tmp_path), FAMILIES[kind])
    wanted = {name: tuple(shape) for name, (_, shape) in golden(kind)["tensors"].items()}
    assert {tensor.name: tensor.shape for tensor in found} == wanted
    assert len(found) == len(wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_of_ours_is_in_one_of_theirs(tmp_path, kind):
    model = model_of(kind, tmp_path)
    stored = stored_tensors(model, FAMILIES[kind])
    placed = [(ours.name, tensor.expert) for tensor in stored for ours in tensor.ours]
    assert sorted(placed, key=str) == sorted(
        (
            (tensor.name, expert)
            for tensor in model_tensors(model)
            for expert in (range(tensor.experts) if tensor.experts else (None,))
        ),
        key=str,
    )


def test_a_model_without_family_keeps_our_names():
    model = ModelShape(name="own", layers=1, hidden=16, heads=4, kv_heads=4, ffn=32, vocab=64)
    found = stored_tensors(model, None)
    assert [tensor.name for tensor in found] == [tensor.name for tensor in model_tensors(model)]
    assert found[0].shape == (64, 16), "without the padded rows"


def test_a_tensor_without_a_name_is_refused():
    model = ModelShape(name="own", layers=1, hidden=16, heads=4, kv_heads=4, ffn=32, vocab=64)
    odd = dataclasses.replace(model, query_key_norm=True)
    with refused(InvalidWeights, "Unsupported", "1.q_norm"):
        stored_tensors(odd, FAMILIES["gpt_neo"])


@pytest.mark.parametrize("kind", ["qwen", "gemma", None, 3])
def test_a_family_without_a_table_is_refused(kind):
    with refused(InvalidWeights, "Unknown", "model_type"):
        family_of({"model_type": kind})
