"""heddle/demo/picture.py: who holds which layers when, as one SVG."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from heddle.demo import picture
from heddle.train.recorder import Recorder
from heddle.train.result import build_result
from tests.unit.heddle.train.recorded import FACTS, JOB, PROFILE, recorded

PANELS = 4
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The root of the picture of the recorded run."""
    path, recorder = tmp_path_factory.mktemp("picture") / "run.svg", recorded()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(picture.mpl.rcParams, "svg.fonttype", "none")  # texts stay texts
        picture.draw(build_result(JOB, recorder, PROFILE, FACTS), recorder, path)
    return ElementTree.parse(path).getroot()


def texts(root):
    return [element.text.strip() for element in root.iter(f"{SVG}text") if element.text]


def test_there_is_one_bar_for_each_rank_of_each_epoch(drawn):
    """Two ranks, then four; a bar of colour is a patch that is neither white nor without fill."""
    styles = [
        path.get("style", "")
        for group in drawn.iter(f"{SVG}g")
        if group.get("id", "").startswith("patch_")
        for path in group.findall(f"{SVG}path")
    ]
    filled = [style for style in styles if any(colour in style for colour in picture.COLOURS)]
    assert len(filled) == 6
    assert sum(picture.COLOURS[1] in style for style in filled) == 2  # the second template's


def test_every_bar_says_its_layers(drawn):
    found = texts(drawn)
    assert [found.count(text) for text in ("0-3", "4-7", "0-7 tp2")] == [2, 2, 2]


def test_gpus_and_epochs_have_their_names(drawn):
    found = texts(drawn)
    assert {"fast-1 gpu 0", "fast-2 gpu 0", "fast-3 gpu 0", "fast-3 gpu 1"} <= set(found)
    assert {"epoch 1: start", "epoch 2: join, pause 0.25 s"} <= set(found)
    assert {"one process of plain torch", "this job"} <= set(found)


def groups(root, word):
    """The groups of the picture that are called by a word, or by a word and more."""
    found = (group.get("id", "") for group in root.iter(f"{SVG}g"))
    return [name for name in found if name.split(" ")[0] == word]


def test_every_event_and_refusal_is_marked_and_every_pause_drawn_in_each_panel(drawn):
    assert groups(drawn, "mark") == ["mark join", "mark refusal", "mark kill"]
    labels = {"fast-3 joins, 2 GPUs", "plan kept, gain +0.8 %", "fast-1 is killed"}
    assert labels <= set(texts(drawn))
    assert groups(drawn, "pause") == ["pause"] * PANELS


def test_marks_and_pauses_are_in_seconds_since_the_first_step():
    recorder = recorded()
    result = build_result(JOB, recorder, PROFILE, FACTS)
    found = [(mark.kind, mark.at_s) for mark in picture.marks(recorder, 100.0)]
    assert found == [
        ("join", pytest.approx(0.9)),
        ("refusal", pytest.approx(2.4)),
        ("kill", pytest.approx(2.6)),
    ]
    (pause,) = picture.pauses(result, recorder, 100.0)
    assert pause == pytest.approx((1.24, 1.5))  # the end of step 5 and the start of step 6


def test_all_panels_have_one_time_axis(drawn):
    """Numbers below the last panel only: the others share them."""
    ticks = [group for group in drawn.iter(f"{SVG}g") if group.get("id", "").startswith("xtick")]
    assert len(ticks) == PANELS * len([t for t in ticks if list(t.iter(f"{SVG}text"))])
    assert "seconds since the first step; grey: training pauses" in texts(drawn)
    assert "step" not in texts(drawn)


def test_a_run_that_ended_before_its_first_step_has_an_empty_picture(tmp_path):
    path = tmp_path / "empty.svg"
    picture.draw(build_result(JOB, Recorder(), PROFILE, FACTS), Recorder(), path)
    assert ElementTree.parse(path).getroot().tag == f"{SVG}svg"
