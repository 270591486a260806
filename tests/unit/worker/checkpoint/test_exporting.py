"""checkpoint/exporting.py: the numbers that leave are those that were saved, box by box."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import worker.checkpoint.exporting as module
from planner.model.tensors import model_tensors
from tests.builders import MOE, tiled
from tests.checkpoints import of_a_job, save, state
from tests.fakes.vault import MemoryVault
from tests.refusals import refused
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.exporting import SavedWeights, dcp_files, hugging_face
from worker.checkpoint.manifest import Damaged
from worker.checkpoint.verify import Contents
from worker.errors import InvalidWeights
from worker.weights.sources import whole

ATTEMPT = Attempt(epoch=1, step=10)
PLAN = tiled("2x1 4x2", ep=2, etp=2, replicas=2)


def saved(plan=PLAN, **job):
    """(vault, manifest, contents) of a checkpoint of the model with experts."""
    vault = MemoryVault()
    manifest = save(vault, ATTEMPT, plan, state(MOE, 10), of_a_job(MOE, 10, **job))
    assert manifest is not None
    return vault, manifest, Contents(vault, ATTEMPT, manifest)


PLANS = (PLAN, tiled("4x3"), tiled("1x1 2x2", ep=1, etp=4, replicas=4))
saved_once = cache(saved)


@settings(deadline=None, max_examples=6)
@given(plan=st.sampled_from(PLANS), data=st.data())
def test_any_box_of_any_tensor_has_the_saved_bits(plan, data):
    source = SavedWeights(saved_once(plan)[2])
    for tensor in model_tensors(MOE):
        box = []
        for size in tensor.shape:
            start = data.draw(st.integers(0, size - 1))
            box.append(slice(start, data.draw(st.integers(start + 1, size))))
        truth = state(MOE, 10).parts[tensor.name][0]
        assert torch.equal(source.read(tensor, tuple(box)), truth[tuple(box)])


def test_rows_are_read_some_at_a_time(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 40)
    source = SavedWeights(saved()[2])
    for tensor in model_tensors(MOE):
        truth = state(MOE, 10).parts[tensor.name][0]
        assert torch.equal(source.read(tensor, whole(tensor.shape)), truth)


def test_no_number_of_a_damaged_block_is_given_out():
    vault, manifest, contents = saved()
    box = next(one for one in manifest.boxes if one.box.tensor == "0.weight")
    name = ATTEMPT.name(box.file)
    content = bytearray(vault.objects[name])
    content[box.start + box.num_bytes - 1] ^= 1
    vault.objects[name] = bytes(content)
    tensor = model_tensors(MOE)[0]
    first = (slice(box.box.start, box.box.start + 1), slice(0, 1))
    with pytest.raises(Damaged) as refusal:
        SavedWeights(contents).read(tensor, first)
    assert refusal.value.name == name


def test_files_for_torch_are_the_files_themselves():
    vault, manifest, contents = saved()
    count = []
    files = dcp_files(contents, manifest, count.append)
    for file in files:
        assert b"".join(file.chunks()) == vault.objects[ATTEMPT.name(file.name)]
    assert sum(count) == sum(file.size for file in files) == sum(manifest.files.values())


@pytest.mark.parametrize("place", [12, -1])
def test_a_damaged_file_for_torch_ends_in_an_error(place):
    """In its header, or in its last number."""
    vault, manifest, contents = saved()
    (first, *_) = dcp_files(contents, manifest)
    name = ATTEMPT.name(first.name)
    content = bytearray(vault.objects[name])
    content[place] ^= 1
    vault.objects[name] = bytes(content)
    with pytest.raises(Damaged):
        list(first.chunks())


def test_the_folder_has_the_config_and_the_tokenizer_of_the_job(tmp_path):
    _, manifest, contents = saved(config={"model_type": "llama"}, folder=str(tmp_path))
    wanted = hugging_face(manifest, contents)
    assert (wanted.config, wanted.origin) == ({"model_type": "llama"}, tmp_path)
    assert wanted.dtype is torch.float32


@pytest.mark.parametrize("config", [None, {"model_type": "own"}])
def test_a_model_of_no_family_is_refused(config):
    _, manifest, contents = saved(config=config)
    with refused(InvalidWeights, "Unsupported", "format"):
        hugging_face(manifest, contents)
