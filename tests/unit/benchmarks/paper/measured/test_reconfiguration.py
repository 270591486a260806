"""The page of the reconfiguration breakdown."""

from __future__ import annotations

from benchmarks.paper.measured.reconfiguration import stalls_s, text


def a_join(gpus, stall_s):
    return {
        "reason": "join",
        "gpus": gpus,
        "stall_s": stall_s,
        "parts": {"drain_s": stall_s / 4, "flip_s": 3 * stall_s / 4},
        "bytes_moved": 2_000_000,
    }


def test_the_page_has_each_part_of_each_join_beside_the_papers():
    found = {
        "repeats": [[a_join(4, 0.2), a_join(6, second_s)] for second_s in (0.4, 0.6, 0.8)],
        "search_s": [0.1, 0.2, 0.3],
    }
    assert stalls_s(found) == [0.2, 0.4, 0.2, 0.6, 0.2, 0.8]
    found["repeats"][0].append(found["repeats"][0][0] | {"reason": "loss", "stall_s": 9.0})
    assert 9.0 not in stalls_s(found)
    said = text(found)
    assert "loss, 4 GPUs (n=1)" in said
    assert "| stall | 200 / 200 | 600 / 800 |" in said
    assert "| drain | 50 / 50 | 150 / 200 |" in said
    assert "19.2 s to 21.5 s" in said
