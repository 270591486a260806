"""worker/weights/merging.py and ending.py: parts become one folder once all are whole."""

from __future__ import annotations

import errno
import json

import pytest
import torch
from safetensors.torch import load_file

from planner.plans.ranks import RankMap
from tests.refusals import refused
from tests.unit.worker.changes import MODEL, SPEC, plan, shards_of, whole_state
from tests.unit.worker.weights.together import end, endings
from worker.errors import InvalidWeights
from worker.weights import merging
from worker.weights.merging import Merge, parts_in
from worker.weights.parts import INDEX
from worker.weights.saving import NotYet

STATE = whole_state()


def weights_of(seat):
    return {name: parts[0] for name, parts in shards_of(seat, STATE).items()}


def job(output, *pipelines):
    seats = RankMap.of(plan(*pipelines)).seats
    spec = SPEC.model_copy(update={"output": str(output)})
    return MODEL, seats, [weights_of(seat) for seat in seats], spec


def run(steps):
    for step in steps:
        step.run(lambda: True)


def check(output):
    found = load_file(output / "model.safetensors")
    assert torch.equal(found["model.embed_tokens.weight"], STATE["0.weight"][0][: MODEL.vocab])
    assert torch.equal(found["model.layers.1.self_attn.o_proj.weight"], STATE["2.o"][0])
    assert {path.name for path in output.iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("pipelines", [["1x2"], ["4x1+2x1"], ["2x1+1x1", "1x2"]])
def test_a_job_leaves_one_folder_and_no_parts(tmp_path, pipelines):
    ends = end(*job(tmp_path, *pipelines))
    assert {one.kept_as for one in ends} == {"folder"}
    check(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"


def test_the_first_rank_waits_until_all_parts_are_whole(tmp_path):
    first, second = endings(*job(tmp_path, "1x1+1x1"))
    *write, merge = first.steps
    run(write)
    with pytest.raises(NotYet):
        merge.run(lambda: True)
    *write, mark = second.steps
    run(write)
    with pytest.raises(NotYet):  # it may still be read back
        merge.run(lambda: True)
    assert not (tmp_path / "config.json").exists()
    run([mark, merge])
    check(tmp_path)


def test_parts_of_an_earlier_job_are_not_taken_for_those_of_this_one(tmp_path):
    model, seats, weights, spec = job(tmp_path, "1x1+1x1")
    older = [{name: tensor + 1 for name, tensor in held.items()} for held in weights]
    for one in endings(model, seats, older, spec):
        run(step for step in one.steps if not isinstance(step, Merge))
    first, second = endings(model, seats, weights, spec)
    *write, merge = first.steps
    run(write)
    with pytest.raises(NotYet):
        merge.run(lambda: True)
    run([*second.steps, merge])
    found = load_file(tmp_path / "model.safetensors")
    assert torch.equal(found["model.embed_tokens.weight"], STATE["0.weight"][0][: MODEL.vocab])


def test_disks_of_their_own_keep_their_parts_and_can_be_merged_later(tmp_path):
    model, seats, weights, spec = job(tmp_path, "1x1+2x1")
    outputs = [str(tmp_path / str(seat.rank)) for seat in seats]
    for output in outputs:
        (tmp_path / output).mkdir()
    ends = endings(model, seats, weights, spec, outputs)
    assert {one.kept_as for one in ends} == {"parts"}
    together = tmp_path / "together"
    together.mkdir()
    for one, output in zip(ends, outputs, strict=True):
        run(one.steps)
        found = parts_in(tmp_path / output)
        with refused(InvalidWeights, "Missing", found.missing()[0]):
            found.verify()
        for path in (tmp_path / output / "parts").iterdir():
            path.rename(together / path.name)
    parts_in(together).verify()


def test_a_part_that_changed_on_the_disk_is_named(tmp_path):
    for one in endings(*job(tmp_path, "1x2")):
        run(step for step in one.steps if not isinstance(step, Merge))
    part = tmp_path / "parts" / "weights-stage0-slot0.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with refused(InvalidWeights, "Damaged", part.name):
        Merge(tmp_path).run(lambda: True)


def test_a_merge_that_fails_goes_on_where_it_was(tmp_path, monkeypatch):
    first, second = endings(*job(tmp_path, "1x1+1x1"))
    *write, merge = first.steps
    run([*second.steps, *write])
    real = merging.folder_files
    opened = []

    def breaking(wanted, source):
        *shards, config = real(wanted, source)

        def chunks():
            opened.append(1)
            raise OSError(errno.ENOSPC, "No space left on device")

        return *shards, (config if opened else type(config)("config.json", "c.part", chunks, 1))

    monkeypatch.setattr(merging, "folder_files", breaking)
    with pytest.raises(OSError, match="No space left"):
        merge.run(lambda: True)
    written = (tmp_path / "model.safetensors").stat()
    merge.run(lambda: True)
    check(tmp_path)
    assert (tmp_path / "model.safetensors").stat() == written, "it is not written twice"


def test_a_merge_that_is_given_up_leaves_the_parts(tmp_path):
    (one,) = endings(*job(tmp_path, "1x2"))
    *write, merge = one.steps
    run(write)
    merge.run(lambda: False)
    assert {path.name for path in tmp_path.iterdir()} == {"parts"}
    parts_in(tmp_path).verify()


def test_weights_of_an_earlier_export_are_gone_before_the_folder_is_whole(tmp_path):
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json", "notes.txt"):
        (tmp_path / name).touch()
    end(*job(tmp_path, "1x2"))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"config.json", "model.safetensors", "notes.txt"}


def test_a_folder_without_parts_is_refused(tmp_path):
    with refused(InvalidWeights, "Missing", INDEX):
        parts_in(tmp_path)
    with refused(InvalidWeights, "Missing", "folder"):
        parts_in(tmp_path / "none")
    (tmp_path / INDEX).write_text("{}")
    with refused(InvalidWeights, "Unreadable", INDEX):
        parts_in(tmp_path)
    (tmp_path / INDEX).write_text("[" * 100_000)
    with refused(InvalidWeights, "Unreadable", INDEX):
        parts_in(tmp_path)
