"""heddle/train/unsaved.py: what is called saved can be exported."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.train.preconditions.refusals import COPIES, weights_bytes
from heddle.train.unsaved import remedy, whole_parts, without_waiting
from planner.plans.ranks import RankMap
from tests.unit.worker.changes import MODEL, SPEC, plan, shards_of, whole_state
from tests.unit.worker.weights.together import endings
from worker.weights.merging import mark_of, parts_in

VOCAB = 10**12  # words, more than a disk holds


def parts_of_two_ranks(output: Path):
    """The steps of two ranks whose parts become one folder."""
    seats, state = RankMap.of(plan("1x1+1x1")).seats, whole_state()
    weights = [{name: held[0] for name, held in shards_of(seat, state).items()} for seat in seats]
    spec = SPEC.model_copy(update={"output": str(output)})
    return [end.steps for end in endings(MODEL, seats, weights, spec)]


def run(steps):
    for step in steps:
        step.run(lambda: True)


def test_parts_are_saved_once_every_rank_has_marked_its_part(tmp_path):
    first, second = parts_of_two_ranks(tmp_path)
    assert whole_parts(tmp_path) is None
    run(first[:-1])  # all but the merge
    assert whole_parts(tmp_path) is None
    assert without_waiting(tmp_path) == "no weights are saved"
    run(second)
    assert whole_parts(tmp_path) == tmp_path / "parts"
    assert f"`heddle weights export {tmp_path} FOLDER`" in without_waiting(tmp_path)
    parts = parts_in(tmp_path)
    name = parts.names[1]
    (tmp_path / "parts" / mark_of(name, parts.digest(name))).unlink()
    assert whole_parts(tmp_path) is None


def freed_mb(words: str, folder: Path) -> int:
    assert words.startswith("free ")
    assert words.endswith(f" MB on the disk of {folder}")
    return int(words.split()[1].replace(",", ""))


def test_a_full_disk_is_told_what_to_free_less_what_is_written(tmp_path):
    assert remedy(tmp_path, MODEL) == f"make {tmp_path} writable"  # there is room
    large = replace(MODEL, vocab=VOCAB)
    needed_mb = COPIES * weights_bytes(large) / 1e6
    free_mb = shutil.disk_usage(tmp_path).free / 1e6
    before_mb = freed_mb(remedy(tmp_path, large), tmp_path)
    assert before_mb == pytest.approx(needed_mb - free_mb, rel=0.01)
    (tmp_path / "parts").mkdir()
    written = tmp_path / "parts" / "weights-0.safetensors"
    with written.open("wb") as file:
        file.truncate(10**12)  # a file of holes takes no room
    after_mb = freed_mb(remedy(tmp_path, large), tmp_path)
    assert before_mb - after_mb == pytest.approx(1e6, rel=0.01)


def test_a_disk_that_does_not_answer_is_a_clause_all_the_same(tmp_path):
    assert remedy(tmp_path / "gone", MODEL).startswith("make ")
