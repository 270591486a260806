"""worker/weights/files.py: a file is whole or not there."""

from __future__ import annotations

import hashlib

import pytest
import torch
from safetensors.torch import load

from worker.weights.files import File, safetensors_chunks


def file_of(*chunks, name="f"):
    return File.of(name, f"{name}.part", lambda: iter(chunks))


def test_size_and_digest_are_those_of_what_is_written(tmp_path):
    file = file_of(b"ab", b"", b"cd")
    file.write(tmp_path)
    assert (tmp_path / "f").read_bytes() == b"abcd"
    assert (file.size, file.digest) == (4, hashlib.sha256(b"abcd").digest())


def test_a_failure_leaves_the_older_file_and_no_draft(tmp_path):
    (tmp_path / "f").write_bytes(b"old")

    def broken():
        yield b"ab"
        if broken.fails:
            raise OSError(28, "No space left on device")

    broken.fails = False
    file = File.of("f", "f.part", broken)
    broken.fails = True
    with pytest.raises(OSError, match="No space left"):
        file.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_who_reads_the_older_file_meanwhile_reads_all_of_it(tmp_path):
    file_of(b"older").write(tmp_path)
    with (tmp_path / "f").open("rb") as older:
        file_of(b"newer").write(tmp_path)
        assert older.read() == b"older"
    assert (tmp_path / "f").read_bytes() == b"newer"


def test_a_file_that_is_not_wanted_any_more_takes_no_name(tmp_path):
    file_of(b"ab").write(tmp_path, lambda: False)
    assert list(tmp_path.iterdir()) == []


def test_other_bytes_than_were_meant_are_an_error(tmp_path):
    contents = iter([b"meant", b"found"])
    file = File.of("f", "f.part", lambda: iter([next(contents)]))
    with pytest.raises(OSError, match="gives back other bytes"):
        file.write(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_library_reads_what_is_written(dtype):
    whole = torch.randn(6, 8).to(dtype)
    tensors = {"0.weight": whole, "1.q": whole[:, 2:5], "1.norm": whole[0], "é": whole.T}
    content = b"".join(safetensors_chunks(tensors, {"0.weight": "0:6"}))
    found = load(content)
    assert set(found) == set(tensors)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_tensors_are_written_from_where_they_are():
    weight = torch.zeros(1024)
    _, chunk = safetensors_chunks({"w": weight}, {})
    weight.fill_(1.0)
    assert bytes(chunk) == weight.numpy().tobytes()
