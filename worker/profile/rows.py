"""The rows of a measured profile: which contradict each other, and measuring those again.

Rows of one part differ by the micro-batch alone, and time grows with it along a line that
bends little; a row that lies above that line was measured while something else ran.  The smaller
time of a row wins, as other load only ever adds.
Invariant: pure but for what it calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from planner.model.shape import Kind
from planner.profiles.entries import LayerCost

FALLS = 0.97  # a larger micro-batch never takes less than this share of a smaller one's time
JUMPS = 1.2  # per-sample time of a larger micro-batch over that of a smaller one, at most
BENDS = 1.2  # a row's time over that of the line between its neighbours, at most
SPREAD = 0.25  # a median further above the smallest time: something else ran
AGREES = 1.02  # of the smallest time of a row: a later one up to here confirms it
CONFIRMATIONS = 2  # of a row, until it is believed
MORE_CONFIRMATIONS = 4  # of one that contradicts others, or whose repeats differed
CALMER = 0.5  # of the load at which a row was measured: the machine is worth asking again
ROUNDS = 12  # in which rows are measured again
GROWTH = 2.2  # a micro-batch twice as large takes up to so much longer


class DoesNotFit(Exception):
    """A row needs more memory than there is."""


class Part(NamedTuple):
    """What is measured: a kind of layer, and how its experts are divided.

    Attributes:
        ep: degree over which whole experts are spread.
        etp: degree over which each expert is cut; 0: as TP cuts the rest.
    """

    kind: Kind
    ep: int = 1
    etp: int = 0

    def __str__(self) -> str:
        """In a line on what is measured next."""
        return self.kind + (f" with EP {self.ep} and ETP {self.etp}" if self.etp else "")


Key = tuple[Part, int]  # and the micro-batch
RowKey = tuple[Part, int, int]  # TP degree and micro-batch


@dataclass(frozen=True, slots=True)
class Row:
    """Measurement of a part at a micro-batch.

    Attributes:
        spread: how much longer the median of its repeats was than the smallest.
        load: of the machine then, as the system averages it over a minute; None: nobody knows.
        confirmations: later measurements that agree with it.
    """

    cost: LayerCost
    spread: float = 0.0
    load: float | None = None
    confirmations: int = CONFIRMATIONS  # a row of a file is believed, unless others contradict it

    @property
    def seconds(self) -> float:
        """Both passes."""
        return self.cost.forward_s + self.cost.backward_s


def smaller(old: Row, new: Row) -> Row:
    """Of two measurements of a row the smaller forward pass, and the smaller sum of both."""
    forward_s = min(old.cost.forward_s, new.cost.forward_s)
    cost = replace(
        new.cost,
        forward_s=forward_s,
        backward_s=max(0.0, min(old.seconds, new.seconds) - forward_s),
        attention_s=min(old.cost.attention_s, new.cost.attention_s),
    )
    loads = [load for load in (old.load, new.load) if load is not None]
    least_s = min(old.seconds, new.seconds)
    confirmations = old.confirmations if old.seconds <= AGREES * least_s else 0
    confirmations += new.seconds <= AGREES * least_s and old.seconds <= AGREES * least_s
    return Row(cost, min(old.spread, new.spread), min(loads, default=None), confirmations)


def doubtful(rows: Mapping[Key, Row]) -> frozenset[Key]:
    """Rows that cannot all be true, or that nothing confirms yet."""
    found = {key for key, row in rows.items() if row.spread > SPREAD}
    for part in {part for part, _ in rows}:
        own = {b: row for (other, b), row in rows.items() if other == part}
        wrong = contradicting({b: row.seconds for b, row in own.items()})
        wrong |= contradicting({b: row.cost.forward_s for b, row in own.items()})
        found |= {(part, b) for b in wrong}
    return frozenset(
        key
        for key, row in rows.items()
        if row.confirmations < (MORE_CONFIRMATIONS if key in found else CONFIRMATIONS)
    )


def contradicting(times: Mapping[int, float]) -> frozenset[int]:
    """Micro-batches whose time is too long beside that of the others.

    Args:
        times: seconds by micro-batch.
    """
    sizes = sorted(times)
    found = set()
    for small, large in pairwise(sizes):
        if times[large] < FALLS * times[small]:
            found.add(small)
        if times[large] / large > JUMPS * times[small] / small:
            found.add(large)
    for small, middle, large in zip(sizes, sizes[1:], sizes[2:], strict=False):
        share = (middle - small) / (large - small)
        between = times[small] + share * (times[large] - times[small])
        if times[middle] > BENDS * between:
            found.add(middle)
    return frozenset(found)


def worth_measuring(rows: Mapping[Key, Row], cores: int, load: float) -> bool:
    """Whether rows are in doubt that this machine, as it is now, could measure better.

    Args:
        rows: as they are kept.
        cores: of the machine.
        load: of it now.
    """
    wrong = doubtful(rows)
    return any(
        row.load is None or load < CALMER * row.load
        for key, row in rows.items()
        if key in wrong or is_busy(row.load, cores)
    )


def measured_rows(
    measure: Callable[[Part, int], Row],
    parts: Sequence[Part],
    micro_batches: Sequence[int],
    clock: Callable[[], float],
    limit_s: float,
    say: Callable[[Part, int], None],
) -> tuple[dict[Key, Row], tuple[int, ...]]:
    """Measure all rows, smallest micro-batch first, then those in doubt again.

    Args:
        measure: one row; `DoesNotFit` leaves out its micro-batch and larger ones.
        parts: of the model.
        micro_batches: ascending.
        clock: seconds that pass.
        limit_s: of all of it; a micro-batch that would pass it is not begun.
        say: gets what comes next.

    Returns:
        The rows, and the micro-batches for which time or memory did not suffice.
    """
    rows: dict[Key, Row] = {}
    begin_s = clock()
    left: tuple[int, ...] = ()
    for index, b in enumerate(micro_batches):
        start_s = clock()
        found: dict[Key, Row] = {}
        try:
            for part in parts:
                say(part, b)
                found[part, b] = replace(measure(part, b), confirmations=0)
        except DoesNotFit:
            left = tuple(micro_batches[index:])
            break
        rows |= found
        now_s = clock()
        rest = tuple(micro_batches[index + 1 :])
        if rest and now_s - begin_s + GROWTH * (now_s - start_s) > limit_s:
            left = rest
            break
    again(rows, measure, clock, begin_s + limit_s, say)
    return rows, left


def again(
    rows: dict[Key, Row],
    measure: Callable[[Part, int], Row],
    clock: Callable[[], float],
    until_s: float,
    say: Callable[[Part, int], None],
    also: frozenset[Key] = frozenset(),
) -> None:
    """Measure rows in doubt again, in rounds, until none is left or the time is over.

    Args:
        rows: that are there, and are replaced.
        measure: one row.
        clock: seconds that pass.
        until_s: by that clock; no row is begun later.
        say: gets what comes next.
        also: rows that the first round measures whatever they say.
    """
    for number in range(ROUNDS):
        keys = doubtful(rows) | (also if number == 0 else frozenset())
        for key in sorted(keys, key=lambda key: (key[1], key[0])):
            if clock() > until_s:
                return
            say(*key)
            with contextlib.suppress(DoesNotFit):  # others took memory meanwhile
                rows[key] = smaller(rows[key], measure(*key))


def is_busy(load: float | None, cores: int) -> bool:
    """Whether more wanted a core of the machine than it has, the measurement itself apart."""
    return load is not None and load > cores + 1
