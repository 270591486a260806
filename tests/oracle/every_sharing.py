"""The sharing of the global batch that no other beats.

M of a replica changes its pipeline's seconds alone (the sum of gradients and the optimizer step are
once an iteration), so a sharing is best if its last replica ends earliest: if some sharing sums to
B with all replicas done by T, so does one by any later time, and bisection over the ends finds the
first.
Invariant: shares are at least 1, at most what memory allows, and sum to B exactly.
Source: Heddle, section 5.3.   Legend: B global batch, b micro-batch, M micro-batches of a replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

ROUNDING = 1e-12  # relative


@dataclass(frozen=True, slots=True)
class Runner:
    """A replica as far as its share of the batch depends on it.

    Attributes:
        micro_batch: b.
        slowest_s: its slowest stage.
        sum_s: all its stages.
        most: the largest M that its memory allows.
    """

    micro_batch: int
    slowest_s: float
    sum_s: float
    most: int

    def seconds(self, micro_batches: int) -> float:
        """(M - 1) max + sum."""
        return (micro_batches - 1) * self.slowest_s + self.sum_s

    def done_by(self, end_s: float) -> int:
        """The most micro-batches that it ends by then, 0 if not even one."""
        end_s *= 1 + ROUNDING
        if self.sum_s > end_s:
            return 0
        return min(self.most, 1 + int(min(self.most, (end_s - self.sum_s) / self.slowest_s)))


def best_sharing(
    global_batch: int, runners: Sequence[Runner], limit_s: float
) -> tuple[int, ...] | None:
    """M of each replica; None if no sharing ends before the limit."""
    ends = sorted(
        {
            end_s
            for runner in set(runners)
            for m in range(1, min(runner.most, global_batch // runner.micro_batch) + 1)
            if (end_s := runner.seconds(m)) < limit_s
        }
    )
    if not ends or _shares(global_batch, runners, ends[-1]) is None:
        return None
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if _shares(global_batch, runners, ends[middle]) is None:
            low = middle + 1
        else:
            high = middle
    return _shares(global_batch, runners, ends[low])


def _shares(global_batch: int, runners: Sequence[Runner], end_s: float) -> tuple[int, ...] | None:
    """Some sharing by which all are done by then."""
    counts = [runner.done_by(end_s) for runner in runners]
    if not all(counts) or global_batch > sum(
        runner.micro_batch * m for runner, m in zip(runners, counts, strict=True)
    ):
        return None
    members: dict[int, list[int]] = {}
    for index, runner in enumerate(runners):
        members.setdefault(runner.micro_batch, []).append(index)
    for totals in _totals(global_batch, members, counts):
        for size, total in totals.items():
            for _ in range(sum(counts[i] for i in members[size]) - total):
                last = max(
                    (i for i in members[size] if counts[i] > 1),
                    key=lambda i: (runners[i].seconds(counts[i]), i),
                )
                counts[last] -= 1
        return tuple(counts)
    return None


def _totals(
    global_batch: int, members: dict[int, list[int]], counts: Sequence[int]
) -> Iterator[dict[int, int]]:
    """{b: micro-batches of that size} of every way to make up the batch.

    All numbers but that of the smallest size are tried, which is then determined.
    """
    sizes = sorted(members, reverse=True)
    ranges = [
        range(sum(counts[i] for i in members[b]), len(members[b]) - 1, -1) for b in sizes[:-1]
    ]
    smallest = sizes[-1]
    for numbers in product(*ranges):
        left = global_batch - sum(b * number for b, number in zip(sizes, numbers, strict=False))
        number, odd = divmod(left, smallest)
        most = sum(counts[i] for i in members[smallest])
        if not odd and len(members[smallest]) <= number <= most:
            yield dict(zip(sizes, (*numbers, number), strict=True))
