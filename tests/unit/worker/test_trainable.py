"""worker/trainable.py: one sentence for what the worker does not compute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.model.own import OwnTensor, OwnTensors
from tests.families import FAMILIES
from worker.trainable import beyond_positions, why_untrainable

WEIGHT = (OwnTensor("weight", (4, 4)),)


def test_layers_of_ones_own_mask_no_documents():
    own = replace(FAMILIES["qwen3"], own=OwnTensors("mine:model", *[WEIGHT] * 3))
    assert why_untrainable(own, 8) is None
    said = why_untrainable(own, 8, masks_documents=True)
    assert said is not None
    assert "'qwen3' are your own, and documentMask masks those of Heddle alone; leave it" in said
    assert why_untrainable(FAMILIES["qwen3"], 8, masks_documents=True) is None


@pytest.mark.parametrize(("length", "is_said"), [(256, False), (512, True)])
def test_samples_beyond_the_positions_of_a_rotary_model_are_said(length, is_said):
    config = {"max_position_embeddings": 256}
    said = beyond_positions(FAMILIES["qwen3"], config, length)
    assert (said is not None) == is_said
    assert said is None or "max_position_embeddings 256, the sequence length is 512" in said


def test_learned_positions_and_models_without_a_configuration_have_no_such_word():
    assert beyond_positions(FAMILIES["gpt2"], {"max_position_embeddings": 4}, 8) is None
    assert beyond_positions(FAMILIES["qwen3"], None, 1 << 20) is None
