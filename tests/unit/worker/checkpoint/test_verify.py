"""checkpoint/verify.py: any byte that is not as it was saved is found, and its object named."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import worker.checkpoint.verify as module
from planner.model.tensors import model_numel
from tests.builders import MOE, tiled
from tests.checkpoints import of_a_job, save, state
from tests.fakes.vault import MemoryVault
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.manifest import Damaged
from worker.checkpoint.vaults.vault import VaultFailed
from worker.checkpoint.verify import verify

ATTEMPT = Attempt(epoch=1, step=10)
PLAN = tiled("2x1 4x2", ep=2, etp=2, replicas=2)


@pytest.fixture
def saved():
    """(vault, manifest) of a whole checkpoint of a model with experts."""
    vault = MemoryVault()
    manifest = save(vault, ATTEMPT, PLAN, state(MOE, 10), of_a_job(MOE, 10))
    assert manifest is not None
    return vault, manifest


def damaged(vault, manifest):
    with pytest.raises(Damaged) as refusal:
        verify(vault, ATTEMPT, manifest)
    assert refusal.value.code == "damaged"
    return refusal.value.name


def test_a_whole_checkpoint_is_read_to_its_last_number(saved):
    vault, manifest = saved
    seen = []
    found = verify(vault, ATTEMPT, manifest, seen.append)
    assert found.num_bytes == sum(seen) == 12 * model_numel(MOE)
    assert (found.files, found.blocks) == (len(manifest.files), len(manifest.boxes))


def test_a_block_is_read_in_chunks(saved, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 24)
    seen = []
    vault, manifest = saved
    assert verify(vault, ATTEMPT, manifest, seen.append).num_bytes == sum(seen)
    assert max(seen) == 24


def test_a_changed_byte_anywhere_in_a_file_is_found_in_that_file(saved):
    vault, manifest = saved
    whole, choose = dict(vault.objects), random.Random(3)
    for file in choose.sample(sorted(manifest.files), 2):
        name = ATTEMPT.name(file)
        header = min(one.start for one in manifest.boxes if one.file == file)
        for place in (0, 7, choose.randrange(8, header), choose.randrange(header, 10**9)):
            content = bytearray(whole[name])
            content[min(place, len(content) - 1)] ^= 1
            vault.objects = whole | {name: bytes(content)}
            assert damaged(vault, manifest) == name


@pytest.mark.parametrize("change", [None, 0, 8, 100, -1])
def test_a_file_that_is_gone_or_cut_is_named(saved, change):
    vault, manifest = saved
    name = ATTEMPT.name([*manifest.files][1])
    if change is None:
        vault.remove(name)
    else:
        vault.objects[name] = vault.objects[name][:change]
    assert damaged(vault, manifest) == name


def test_a_file_with_bytes_behind_its_last_box_is_named(saved):
    vault, manifest = saved
    name = ATTEMPT.name([*manifest.files][1])
    vault.objects[name] += b"x"
    assert damaged(vault, manifest) == name


def boxes_with(manifest, index, **changes):
    boxes = [*manifest.boxes]
    boxes[index] = boxes[index]._replace(**changes)
    return manifest.model_copy(update={"boxes": tuple(boxes)})


def moved(manifest, name):
    """The same boxes with the first file under another name."""
    old, *_ = manifest.files
    files = {name if file == old else file: size for file, size in manifest.files.items()}
    boxes = (box._replace(file=name) if box.file == old else box for box in manifest.boxes)
    return manifest.model_copy(update={"files": files, "boxes": tuple(boxes)})


@pytest.mark.parametrize(
    "change",
    [
        lambda m: moved(m, "../up.safetensors"),
        lambda m: m.model_copy(update={"boxes": m.boxes[1:]}),
        lambda m: m.model_copy(update={"boxes": (*m.boxes, m.boxes[0])}),
        lambda m: boxes_with(m, 0, part="other"),
        lambda m: m.model_copy(update={"boxes": (*m.boxes, m.boxes[0]._replace(part="other"))}),
        lambda m: boxes_with(m, 0, num_bytes=m.boxes[0].num_bytes - 4),
        lambda m: boxes_with(m, 0, start=m.boxes[0].start + 4),
        lambda m: m.model_copy(update={"files": {**m.files, "../up": 8}}),
        lambda m: m.model_copy(update={"shape": {"layers": 3}}),
        lambda m: m.model_copy(update={"shape": replace(MOE, hidden=16).to_json()}),
    ],
)
def test_a_manifest_whose_boxes_do_not_fit_its_model_and_files_is_named(saved, change):
    vault, manifest = saved
    assert damaged(vault, change(manifest)) == ATTEMPT.manifest


def test_a_store_that_fails_is_no_damage(saved):
    vault, manifest = saved

    def fail(operation, name):
        raise VaultFailed("the disk fails", "other")

    vault.fails = fail
    with pytest.raises(VaultFailed) as refusal:
        verify(vault, ATTEMPT, manifest)
    assert refusal.value.code == "other"
