"""Whose turn it is: which engine goes on, how long, and from what.

At first short walks of annealing, which need nothing to start from, and columns that do not know
what the policy proposes, since its plans draw them to where they stand (where experts may be
spread, columns alone, since those of walks do too); then column generation and walks by turns, each
walk no longer than the columns before it; where a round of them gains nothing, the search starts
afresh, and at the end the best plan gets what is left.
Invariant: turns depend on nothing but the method, the budget and the progress that is asked for.
Source: design, section 2 ("An anytime planner in stages").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Literal, NamedTuple

HOT = 0.03  # first temperature of a walk that looks elsewhere, a share of the objective
COOL = 0.004  # of one that improves a good plan
COLD = 0.0005  # last one of all
ANNEALS = (  # name, most templates (0: all), share of the seconds left, of the plans when it ends
    ("anneal one template", 1, 0.05, 0.05),
    ("anneal", 0, 0.08, 0.15),
)
WALKS = (  # after columns, one after the other: name, most templates, temperature
    ("local search", 0, COOL),
    ("anneal", 0, HOT),
    ("local search", 0, COOL),
    ("anneal one template", 1, HOT),
)
WALK_STEPS = 20_000  # plans of a walk after columns, at most; it takes no longer than they did,
# or where no clock ends the search no more plans
COLUMNS_SHARE = 0.2  # of the seconds that are left, for a turn of columns that is not the first
SHORT_S = 0.2  # in less, columns do not find what short walks do
LEAST_S = 0.01  # in less, columns find nothing
FIRST = 0.3  # of the seconds left, for columns that do not know the policy's plans
GAIN = 1e-4  # of turns that go on; so many walks without one, and the search starts afresh

Engine = Literal["walk", "columns", "proposals", "afresh"]


class Turn(NamedTuple):
    """What an engine does next.

    Attributes:
        engine: a walk of annealing; column generation; the plans of rollouts join; from the start.
        name: of a walk, as the search reports it.
        share: of the seconds that are left, at most.
        evaluations: plans that all turns may have priced when it ends.
        templates: most templates of a plan; 0: as many as are asked for.
        hot: first temperature.
    """

    engine: Engine
    name: str = ""
    share: float = 1.0
    evaluations: int = 0
    templates: int = 0
    hot: float = HOT


class Progress(NamedTuple):
    """How far the engines are.

    Attributes:
        evaluations: plans priced so far.
        best: the least objective since they last started; infinite without a plan.
        left_s: seconds.
        took_s: of the last turn.
    """

    evaluations: int
    best: float
    left_s: float
    took_s: float


def turns(
    method: str, most: int, progress: Callable[[], Progress], *, mixes_first: bool = False
) -> Iterator[Turn]:
    """The turns of the engines, one after the other.

    Args:
        method: `search` has no columns, `columns` does not anneal first.
        most: plans that may be priced.
        progress: asked before and after each turn.
        mixes_first: whether `auto` begins with columns.  Plans that annealing finds first draw
            them to where they stand; where experts may be spread, good plans are far apart.  Only
            where seconds end the search, and are enough.
    """
    is_long = SHORT_S < progress().left_s < math.inf
    if method == "search" or (method == "auto" and not (mixes_first and is_long)):
        yield from _anneal(most, progress())
    if method == "auto" and progress().left_s * FIRST > LEAST_S:
        yield Turn("columns", share=FIRST, evaluations=most)
    yield Turn("proposals")  # only now, so that the engines look elsewhere first
    best, stale, columns_share = progress().best, 0, 1.0
    for name, templates, hot in cycle(WALKS) if method != "search" else ():
        before = progress()
        if before.evaluations >= most or before.left_s <= LEAST_S:
            break
        yield Turn("columns", share=columns_share, evaluations=most)
        columns_share = COLUMNS_SHARE
        mixed = progress()
        share, steps = 1.0, mixed.evaluations - before.evaluations
        if mixed.left_s < math.inf:
            share = min(1.0, mixed.took_s / max(1e-9, mixed.left_s))
            steps = WALK_STEPS
        until = min(most, mixed.evaluations + steps)
        yield Turn("walk", name, share, until, templates, hot)
        now = progress()
        if now.best == math.inf or (now.evaluations == before.evaluations and not templates):
            break  # nothing to walk from, or nothing left to price and no clock to end this
        stale = 0 if now.best < best * (1 - GAIN) else stale + 1
        if stale == len(WALKS):  # nothing more is found from here
            yield Turn("afresh")
            yield from _anneal(most, progress())
            now, stale = progress(), 0
        best = now.best
    yield Turn("walk", "local search", 1.0, most, 0, COOL)


def _anneal(most: int, begun: Progress) -> Iterator[Turn]:
    """Short walks over plans of one template, and over all."""
    for name, templates, share, until in ANNEALS:
        steps = begun.evaluations + int(until * (most - begun.evaluations))
        yield Turn("walk", name, share, steps, templates, HOT)
