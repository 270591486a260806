"""hugging_face/shards.py: files and index are those that `transformers` writes."""

from __future__ import annotations

import pytest

from tests.hugging_face import SHARD
from tests.unit.worker.weights.hugging_face.golden import KINDS, golden, model_of
from worker.weights.hugging_face.families import FAMILIES
from worker.weights.hugging_face.shards import MAX_SHARD_BYTES, index_of, shards
from worker.weights.hugging_face.tensors import stored_tensors

MIXTURES = (
    "mixtral",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
)  # whose experts `transformers` takes in another order


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in MIXTURES])
def test_the_index_is_that_of_save_pretrained(tmp_path, kind):
    stored = stored_tensors(model_of(kind, tmp_path), FAMILIES[kind])
    assert index_of(shards(stored, 4, SHARD), 4) == golden(kind)["index"]


def test_what_fits_is_one_file_without_number(tmp_path):
    stored = stored_tensors(model_of("llama", tmp_path), FAMILIES["llama"])
    (shard,) = shards(stored, 4, MAX_SHARD_BYTES)
    assert shard == ("model.safetensors", stored)


@pytest.mark.parametrize("kind", MIXTURES)
def test_the_index_of_a_mixture_has_the_names_and_the_size_of_save_pretrained(tmp_path, kind):
    stored = stored_tensors(model_of(kind, tmp_path), FAMILIES[kind])
    index, wanted = index_of(shards(stored, 4, SHARD), 4), golden(kind)["index"]
    assert index["metadata"] == wanted["metadata"]
    assert index["weight_map"].keys() == wanted["weight_map"].keys()


@pytest.mark.parametrize("limit", [1, 100, 5_000, 10_000, 30_000])
def test_no_file_is_larger_than_the_limit_unless_one_tensor_is(tmp_path, limit):
    stored = stored_tensors(model_of("llama", tmp_path), FAMILIES["llama"])
    found = shards(stored, 4, limit)
    assert sorted(t.name for s in found for t in s.tensors) == sorted(t.name for t in stored)
    for shard in found:
        size = 4 * sum(tensor.numel for tensor in shard.tensors)
        assert size <= limit or len(shard.tensors) == 1
    numbers = [int(shard.name.split("-")[1]) for shard in found]
    assert numbers == list(range(1, len(found) + 1))
