"""The page of the reconfiguration breakdown."""

from __future__ import annotations

from benchmarks.paper.measured.reconfiguration import stalls_s, text


def test_the_page_has_each_part_of_each_join_beside_the_papers():
    found = {
        "repeats": [
            [
                {"gpus": gpus, "stall_s": s, "parts": {"drain_s": s / 4, "flip_s": 3 * s / 4},
                 "bytes_moved": 2_000_000}
                for gpus, s in ((4, 0.2), (6, scale))
            ]
            for scale in (0.4, 0.6, 0.8)
        ],
        "search_s": [0.1, 0.2, 0.3],
    }  # fmt: skip
    assert stalls_s(found) == [0.2, 0.4, 0.2, 0.6, 0.2, 0.8]
    said = text(found)
    assert "| stall | 200 / 200 | 600 / 800 |" in said
    assert "| drain | 50 / 50 | 150 / 200 |" in said
    assert "19.2 s to 21.5 s" in said
