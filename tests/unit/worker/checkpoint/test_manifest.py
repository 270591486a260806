"""checkpoint/manifest.py: a manifest is read as it was written, or it is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plans.pieces import Piece
from worker.checkpoint.manifest import InvalidManifest, Manifest, SavedBox, digest_of


def manifest(**changes):
    box = SavedBox(
        part="weight",
        box=Piece("block.0.q", 0, 64),
        file="rank-0.safetensors",
        start=128,
        num_bytes=4096,
        digest=digest_of(b"x"),
    )
    known = {
        "step": 40,
        "updates": 39,
        "loss_scale": 65536,
        "good_steps": 7,
        "training": {"model": "tiny-llama", "globalBatch": 20},
        "data_digest": "d",
        "shape": {"layers": 6},
        "plan_digest": "p",
        "files": {"rank-0.safetensors": 4224},
        "boxes": (box,),
    }
    return Manifest(**known | changes)


def code_of(content):
    with pytest.raises(InvalidManifest) as refusal:
        Manifest.from_bytes(content)
    return refusal.value.code


def test_a_manifest_is_read_as_it_was_written():
    assert Manifest.from_bytes(manifest().to_bytes()) == manifest()


def test_a_manifest_that_was_cut_at_any_byte_is_none():
    content = manifest().to_bytes()
    assert {code_of(content[:end]) for end in range(len(content))} == {"damaged"}


@given(data=st.data())
def test_a_manifest_with_any_changed_byte_is_none(data):
    content = bytearray(manifest().to_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    assert code_of(bytes(content)) == "damaged"


def test_a_manifest_of_a_newer_version_is_named_so():
    assert code_of(manifest(version=2).to_bytes()) == "newer"
    data = b'{"version": 3, "all": "else"}'
    assert code_of(f"{digest_of(data)}\n".encode() + data) == "newer"


def test_a_manifest_without_its_fields_is_damaged():
    data = b'{"version": 1}'
    assert code_of(f"{digest_of(data)}\n".encode() + data) == "damaged"


@pytest.mark.parametrize("files", [{}, {"rank-0.safetensors": 4223}])
def test_a_box_beyond_its_file_is_damage(files):
    assert code_of(manifest(files=files).to_bytes()) == "damaged"
