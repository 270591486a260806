"""A stall and its parts in a line."""

from __future__ import annotations

from heddle.cli.stalls import stall_line, stall_words


def test_a_stall_line_leaves_out_parts_that_cost_nothing():
    line = stall_line("join", 0.1, {"detect_s": 0.0, "transfer_s": 0.1}, 7.0)
    assert line.startswith("join: stall 100 ms = transfer 100; a cold restart takes 7.0 s")
    line = stall_line("loss", 0.5, {"detect_s": 0.5}, None, 0.4)
    assert line == "loss: stall 500 ms = detect 500, 400 ms from the kill"


def test_parts_are_in_the_order_in_which_they_happen():
    parts = {"flip_s": 0.2, "later_s": 0.1, "transfer_s": 0.3}
    assert stall_words(0.6, parts) == "stall 600 ms = transfer 300 + flip 200 + later 100"
    assert stall_words(0.0, {"flip_s": 0.0}) == "stall 0 ms = 0"
