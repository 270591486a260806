"""heddle/train/screen/measuring.py: a machine that is measured says so from the start."""

from __future__ import annotations

from heddle.train.screen.measuring import LINE_S, MeasuringLines, measuring_progress

TITLE = "measuring cpu-x, once for this model"


def test_the_first_line_comes_at_once_and_then_one_every_few_seconds():
    said, times_s = [], iter((0.0, 1.0, LINE_S, LINE_S + 1))
    lines = MeasuringLines(TITLE, said.append, lambda: next(times_s))
    for done in range(4):
        lines.take(done, 18, "block, micro-batch 4")
    assert said == [TITLE, f"{TITLE}: 2 of 18, block, micro-batch 4"]


def test_without_a_terminal_it_is_said_in_lines(capfd):
    said = []
    with measuring_progress(TITLE, False, said.append) as progress:
        progress(0, 18, "torch is imported")
    assert said == [TITLE]
    assert capfd.readouterr() == ("", "")
