"""worker/trainable.py: one sentence for what the worker does not compute."""

from __future__ import annotations

from dataclasses import replace

from planner.model.own import OwnTensor, OwnTensors
from tests.families import FAMILIES
from worker.trainable import why_untrainable

WEIGHT = (OwnTensor("weight", (4, 4)),)


def test_layers_of_ones_own_mask_no_documents():
    own = replace(FAMILIES["qwen3"], own=OwnTensors("mine:model", *[WEIGHT] * 3))
    assert why_untrainable(own, 8) is None
    said = why_untrainable(own, 8, masks_documents=True)
    assert said is not None
    assert "'qwen3' are your own, and documentMask masks those of Heddle alone; leave it" in said
    assert why_untrainable(FAMILIES["qwen3"], 8, masks_documents=True) is None
