"""Files of compositions: every mistake is named with its line, and the committed ones are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.planner.compositions import cases
from planner.cluster.composition import Composition
from planner.errors import InvalidComposition
from planner.model.catalogue import find_model
from planner.profiles.profile import load_profile
from planner.training.composition_sets import (
    COMMITTED,
    ListedComposition,
    committed_sets,
    listed,
    read_composition_file,
)
from tests.refusals import refused


def test_a_line_is_a_composition_with_what_it_wishes_to_say(tmp_path):
    file = tmp_path / "some.txt"
    file.write_text(
        "# a comment, then an empty line\n\n"
        "h100=8x4,a100-40=10x4+12x1\n"
        "  h100=1x1  origin=stated batch=128 name=one  # the rest is a comment\n"
    )
    first, second = read_composition_file(file)
    text = "h100=8x4,a100-40=10x4+12x1"
    assert first == ListedComposition(text, text)
    assert second == ListedComposition("one", "h100=1x1", 128, "stated")
    assert second.composition == Composition.from_text("h100=1x1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h100=8x4\nh100=8x\n", "line 2: 'h100=8x' is not TYPE=NODESxGPUS"),
        ("h100=0x4\n", "line 1: 'h100=0x4' has 0 nodes"),
        (",\n", "line 1: ',' has no node"),
        ("\n# why\nh100=8x4, a100-40=2x4\n", "line 3: 'a100-40=2x4' is not one of batch="),
        ("h100=8x4 batch=many\n", "line 1: batch=many is no number of samples"),
        ("h100=8x4 batch=0\n", "line 1: batch=0 is no number of samples"),
        ("h100=8x4 batch=\n", "line 1: 'batch=' is not one of"),
        ("h100=8x4 batch=1 batch=2\n", "line 1: 'batch=2' is not one of"),
        ("h100=8x4 origin=guessed\n", "line 1: origin=guessed is none of stated"),
        ("h100=8x4\nh100=8x4\n", "line 2: the name 'h100=8x4' appears twice"),
        ("# nothing\n", "holds no composition; write one a line"),
        ("", "holds no composition"),
    ],
)
def test_a_mistake_is_named_with_its_line(text, found):
    with pytest.raises(InvalidComposition, match=r"^some\.txt") as caught:
        listed(text, "some.txt")
    assert found in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with refused(InvalidComposition, "Unreadable"):
        read_composition_file(tmp_path / "gone.txt")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with refused(InvalidComposition, "Unreadable"):
        read_composition_file(tmp_path / "bytes.txt")


def test_a_mark_that_editors_put_first_is_no_part_of_a_type(tmp_path):
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbfh100=1x1\r\n")
    (one,) = read_composition_file(tmp_path / "marked.txt")
    assert one.composition.gpu_types == ("h100",)


def test_a_batch_that_nobody_trains_is_refused_with_its_line(tmp_path):
    (tmp_path / "large.txt").write_text("h100=1x1 batch=9999999999\n")
    with refused(InvalidComposition, "Malformed", "batch"):
        read_composition_file(tmp_path / "large.txt")


def test_a_committed_set_goes_by_its_name_where_there_is_no_such_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_composition_file(Path("paper")) == committed_sets()["paper"]
    Path("paper").write_text("h100=1x1\n")
    assert [row.text for row in read_composition_file(Path("paper"))] == ["h100=1x1"]


def test_committed_lines_say_where_they_come_from_and_are_of_profiled_types():
    models = {"demo": "tiny-llama", "hardware": "gpt-neo-2.7b"}
    for name, rows in committed_sets().items():
        known = load_profile(models.get(name, "llama3-8b")).types
        assert find_model(models.get(name, "llama3-8b"))
        for row in rows:
            assert row.origin
            assert set(row.composition.gpu_types) <= set(known)


def test_committed_lines_hold_the_gpus_that_their_names_say():
    rows = [row for name in ("paper", "hardware", "demo") for row in committed_sets()[name]]
    said = {row: re.search(r"-(\d+)b?$", row.name) for row in rows}
    assert [row.name for row, match in said.items() if not match] == [f"ls{n}" for n in range(1, 6)]
    for row, match in said.items():
        assert match is None or row.composition.gpus == int(match[1])


def test_the_committed_benchmark_is_what_its_generator_makes():
    rows = [(row.name, row.text, row.batch) for row in committed_sets()["benchmark"]]
    assert rows == [(case.name, case.text, case.batch) for case in cases()]


def test_the_paper_gives_the_ends_of_its_ranges():
    sets = committed_sets()
    gpus = {row.name: row.composition.gpus for row in sets["paper"]}
    assert (gpus["ls1"], gpus["ls5"]) == (52, 416)
    for name in ("four-112", "four-168"):
        composition = next(row for row in sets["paper"] if row.name == name).composition
        slow = sum(node.gpus for node in composition.nodes if node.gpu_type == "a6000")
        assert round(100 * slow / composition.gpus) == 57
    assert [row.composition.gpus for row in sets["hardware"]] == [3, 7, 11, 15, 19]
    assert sorted(path.stem for path in COMMITTED.iterdir()) == sorted(sets)


def test_a_set_that_is_not_there_is_compared_with_those_that_are():
    with refused(InvalidComposition, "Unreadable"):
        read_composition_file(Path("demoo"))
