"""The growing cluster's page: a clock on which steps are short and breaks are not."""

from __future__ import annotations

import pytest

from benchmarks.paper.measured.growth import draw, emulated_steps, pace_errors, rates, text
from benchmarks.paper.measured.stand_in import BATCH, SLOWDOWN


def a_run(seconds_s=(2.0, 1.0), stall_s=3.0):
    """Two steps of each size, with a break between them; seconds a step on the emulated clock."""
    steps, now_s = [], 0.0
    for each_s in seconds_s:
        for _ in range(2):
            steps.append([now_s, now_s + SLOWDOWN * each_s])
            now_s = steps[-1][1]
        now_s += stall_s
    return {
        "steps": steps,
        "changes": [{"at_s": steps[2][0], "stall_s": stall_s, "reason": "join"}],
        "joined_s": [0.0, steps[1][1], steps[-1][1]],
        "ended": "",
        "sizes": [
            {"gpus": gpus, "used": gpus, "search_s": 0.5, "modelled_s": each_s}
            for gpus, each_s in zip((3, 7), seconds_s, strict=True)
        ],
    }


def test_a_step_is_as_short_as_on_its_device_and_a_break_as_long_as_it_was():
    assert emulated_steps(a_run()) == [(0, 2), (2, 4), (7, 8), (8, 9)]


def test_the_rate_of_a_size_counts_its_break():
    (first, first_last), (second, second_last) = rates(a_run())
    assert (first, first_last) == pytest.approx((BATCH / 2, BATCH / 2))
    assert (second, second_last) == pytest.approx((2 * BATCH / 5, BATCH))


def test_a_join_within_a_step_parts_its_samples():
    run = a_run(stall_s=0.0)
    run["joined_s"][1] = SLOWDOWN * 3
    assert [rate for rate, _ in rates(run)] == pytest.approx([BATCH * 1.5 / 3, BATCH * 2.5 / 3])


def test_the_pace_is_that_of_settled_steps():
    run = a_run()
    assert pace_errors(run) == pytest.approx([0, 0])
    run["sizes"][1]["modelled_s"] = 0.8
    assert pace_errors(run) == pytest.approx([0, 0.25])


def test_the_page_says_who_trained_and_who_was_left_out(tmp_path):
    found = {"trained": {"heddle-3": a_run()}, "left_out": {"amp": "none fits"}}
    said = text(found)
    assert "- AMP: none fits" in said
    assert "3.00 s to 3.00 s" in said
    assert "ended after" not in said
    found["trained"]["heddle-3"]["ended"] = "no step was trained for 600 s"
    assert "ended after 7 GPUs: no step" in text(found)
    draw(tmp_path / "growth.svg", found)
    assert (tmp_path / "growth.svg").stat().st_size
