"""Share the global batch among replicas to the exact sample, so that the last ends earliest.

The end is that of some micro-batch of some replica; halving the time leaves few that it could be.
Invariant: shares sum to B exactly, each at least one micro-batch.
Source: Heddle, section 5.3.   Legend: b micro-batch, M micro-batches, tau bottleneck seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from planner.cost import formulas

_TOLERANCE_S = 1e-12
_FEW_ENDS = 16  # so many are looked through instead of halving the time further


@dataclass(frozen=True, slots=True)
class Lane:
    """A replica as far as its share of the batch depends on it."""

    micro_batch: int  # b
    bottleneck_s: float  # tau, the slowest stage
    sum_s: float  # all stages
    most: int  # the largest M that its memory allows

    def seconds(self, micro_batches: int) -> float:
        """Of that many micro-batches."""
        return formulas.pipeline_seconds(micro_batches, self.bottleneck_s, self.sum_s)

    def within(self, limit_s: float) -> int:
        """The most micro-batches that it finishes in that time."""
        return formulas.micro_batches_within(limit_s, self.bottleneck_s, self.sum_s, self.most)


def share(global_batch: int, lanes: Sequence[Lane]) -> tuple[int, ...] | None:
    """M of each replica, at least 1, with sum of M b = B, such that the last one ends earliest.

    None if there is no such share.
    """
    kinds = Counter(lanes)
    if not kinds or any(lane.most < 1 for lane in kinds):
        return None
    counts = {lane: min(lane.most, global_batch // lane.micro_batch) for lane in kinds}
    if not all(counts.values()):
        return None
    low_s = max(lane.sum_s for lane in kinds) - _TOLERANCE_S
    high_s = max(low_s, *(lane.seconds(count) for lane, count in counts.items()))

    def ends_between() -> dict[Lane, range]:
        """The micro-batches that may end last; some more, because seconds are rounded."""
        return {
            lane: range(max(1, lane.within(low_s)), min(count, lane.within(high_s)) + 1)
            for lane, count in counts.items()
        }

    while sum(map(len, ends_between().values())) > _FEW_ENDS + 2 * len(kinds):
        middle_s = (low_s + high_s) / 2
        if not low_s < middle_s < high_s:
            break
        if samples_by_size(global_batch, kinds, middle_s) is None:
            low_s = middle_s
        else:
            high_s = middle_s
    floor_s = max(lane.sum_s for lane in kinds) - _TOLERANCE_S
    found = {lane.seconds(m) for lane, between in ends_between().items() for m in between}
    ends = sorted(end_s for end_s in found if end_s >= floor_s)
    first = bisect_left(
        ends, True, key=lambda end_s: samples_by_size(global_batch, kinds, end_s) is not None
    )
    return None if first == len(ends) else _balanced(global_batch, lanes, ends[first])


def samples_by_size(
    global_batch: int, kinds: Mapping[Lane, int], limit_s: float
) -> dict[int, int] | None:
    """{b: micro-batches of that size in all} that sum to B within the limit; None if impossible.

    Greedy from the largest size: exact where sizes divide each other, as powers of two do.
    """
    least: defaultdict[int, int] = defaultdict(int)
    most: defaultdict[int, int] = defaultdict(int)
    for lane, number in kinds.items():
        count = lane.within(limit_s)
        if count < 1:
            return None
        least[lane.micro_batch] += number
        most[lane.micro_batch] += count * number
    left = global_batch - sum(size * count for size, count in least.items())
    chosen: dict[int, int] = {}
    for size in sorted(least, reverse=True):
        more = min(most[size] - least[size], max(left, 0) // size)
        chosen[size] = least[size] + more
        left -= more * size
    return chosen if left == 0 else None


def _balanced(global_batch: int, lanes: Sequence[Lane], limit_s: float) -> tuple[int, ...]:
    """Spread the micro-batches of each size: those that would end last give theirs up first."""
    wanted = samples_by_size(global_batch, Counter(lanes), limit_s)
    assert wanted is not None
    counts = [lane.within(limit_s) for lane in lanes]
    for size, total in wanted.items():
        members = [index for index, lane in enumerate(lanes) if lane.micro_batch == size]
        last = [(-lanes[i].seconds(counts[i]), -i) for i in members if counts[i] > 1]
        heapify(last)
        for _ in range(sum(counts[index] for index in members) - total):
            index = -last[0][1]
            counts[index] -= 1
            if counts[index] > 1:
                heapreplace(last, (-lanes[index].seconds(counts[index]), -index))
            else:
                heappop(last)
    return tuple(counts)
