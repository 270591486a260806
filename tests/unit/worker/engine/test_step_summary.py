"""worker/engine/step_summary.py: what every rank tells once a step, all ranks read alike."""

from __future__ import annotations

import pytest

from worker.engine.seam import SUSPEND
from worker.engine.step_summary import RankSummary, decode, encode


def summed(*summaries):
    size = len(summaries)
    return decode(sum(encode(one, rank, size) for rank, one in enumerate(summaries)), size)


def own(loss=0.0, ready=0, arrival=0.0, parts=(0.0, 0.0, 0.0), memory=0):
    return RankSummary(loss, ready, arrival, parts, memory)


def test_losses_add_up_and_the_slowest_and_largest_rank_count():
    found = summed(own(0.5, arrival=3.0, memory=10), own(1.5, arrival=9.0, memory=7), own())
    assert (found.loss, found.last_arrival_s, found.memory_bytes) == (2.0, 9.0, 10)


def test_seconds_of_parts_are_means_over_the_ranks():
    found = summed(own(parts=(1.0, 2.0, 0.0)), own(parts=(3.0, 2.0, 1.0)))
    assert found.parts_s == (2.0, 2.0, 0.5)


@pytest.mark.parametrize(
    ("ready", "agreed"),
    [((4, 4, 4), 4), ((4, 4, 0), None), ((4, 4, 5), None), ((0, 0, 0), None), ((1, 2, 3), None),
     ((SUSPEND,) * 3, SUSPEND), ((SUSPEND, SUSPEND, 4), None), ((SUSPEND, 1, 0), None)],
)  # fmt: skip
def test_ranks_agree_exactly_when_all_are_ready_for_the_same(ready, agreed):
    assert summed(*(own(ready=epoch) for epoch in ready)).agreed_epoch == agreed
