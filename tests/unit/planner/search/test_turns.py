"""The turns of the engines: whose, how long, and when they end, without an engine."""

from __future__ import annotations

import math
from itertools import islice

import pytest

from planner.search.turns import (
    ANNEALS,
    FIRST,
    LEAST_S,
    SHORT_S,
    WALK_STEPS,
    WALKS,
    Progress,
    Turn,
    turns,
)

PLENTY = 10**9


class Told:
    """Progress as a test tells it."""

    def __init__(self, best: float = 1.0, gain: float = 0.0, steps: int = 1000) -> None:
        self.best, self.gain, self.steps = best, gain, steps
        self.evaluations, self.left_s, self.took_s = 0, math.inf, 0.0

    def __call__(self) -> Progress:
        return Progress(self.evaluations, self.best, self.left_s, self.took_s)

    def take(self, turn: Turn) -> None:
        """What an engine does: some plans, some gain."""
        if turn.engine in ("columns", "walk"):
            self.evaluations = min(turn.evaluations, self.evaluations + self.steps)
        if turn.engine == "walk":
            self.best *= 1 - self.gain


def taken(told: Told, method: str = "auto", most: int = PLENTY, count: int = 60) -> list[Turn]:
    found = []
    for turn in islice(turns(method, most, told), count):
        told.take(turn)
        found.append(turn)
    return found


def engines(found: list[Turn]) -> list[str]:
    return [turn.engine for turn in found]


def test_walks_and_columns_look_elsewhere_before_proposals_join():
    first = engines(taken(Told()))
    assert first[: len(ANNEALS) + 3] == ["walk", "walk", "columns", "proposals", "columns"]


@pytest.mark.parametrize(
    ("left_s", "first"),
    [
        (2.0, ["columns", "proposals"]),
        (SHORT_S / 2, ["walk", "walk"]),  # columns find less than short walks
        (math.inf, ["walk", "walk"]),  # plans end the search, and columns price few
    ],
)
def test_where_experts_may_be_spread_columns_come_before_walks(left_s, first):
    told = Told()
    told.left_s = left_s
    assert engines(list(islice(turns("auto", PLENTY, told, mixes_first=True), 2))) == first
    assert engines(list(islice(turns("search", PLENTY, told, mixes_first=True), 1))) == ["walk"]


def test_columns_that_do_not_know_the_proposals_get_a_share_of_the_seconds():
    told = Told()
    told.left_s = 2.0
    first, second, *_ = [turn for turn in taken(told) if turn.engine == "columns"]
    assert (first.share, second.share) == (FIRST, 1.0)


@pytest.mark.parametrize(("left_s", "count"), [(LEAST_S / 2, 0), (2 * LEAST_S, 1)])
def test_columns_have_no_turn_that_is_too_short_for_them(left_s, count):
    told = Told()
    told.left_s = left_s
    found = taken(told, count=6)
    assert engines(found).index("proposals") == len(ANNEALS)  # none before them
    assert min(engines(found).count("columns"), 1) == count


def test_columns_and_walks_take_turns_as_long_as_they_gain():
    later = taken(Told(gain=0.01))[4:]
    assert engines(later) == ["columns", "walk"] * (len(later) // 2) + ["columns"] * (
        len(later) % 2
    )
    assert [turn.name for turn in later if turn.engine == "walk"][:4] == [w[0] for w in WALKS]


def test_a_round_of_walks_without_gain_starts_afresh():
    found = engines(taken(Told()))
    first = found.index("afresh")
    assert found[4:first] == ["columns", "walk"] * len(WALKS)
    assert found[first + 1 : first + 3] == ["walk", "walk"]


def test_a_gain_puts_off_the_fresh_start():
    assert "afresh" not in engines(taken(Told(gain=0.001)))


def test_search_has_no_columns_and_columns_do_not_anneal_first():
    assert engines(taken(Told(), "search")) == ["walk", "walk", "proposals", "walk"]
    assert engines(taken(Told(), "columns"))[:2] == ["proposals", "columns"]


@pytest.mark.parametrize("most", [0, 1, 5000, 50_000])
def test_no_turn_exceeds_the_plans_that_may_be_priced(most):
    told = Told()
    found = taken(told, most=most, count=200)
    assert all(turn.evaluations <= most for turn in found)
    assert told.evaluations == most
    assert found[-1] == Turn("walk", "local search", 1.0, most, 0, WALKS[0][2])


def test_without_seconds_left_only_the_last_walk_is_offered():
    told = Told()
    told.left_s = 0.0
    assert engines(taken(told)) == ["walk", "walk", "proposals", "walk"]


def test_a_walk_takes_no_longer_than_the_columns_before_it():
    told = Told()
    told.left_s, told.took_s = 2.0, 0.5
    walk = taken(told, count=6)[5]
    assert walk.share == pytest.approx(0.25)
    assert walk.evaluations == 4 * told.steps + WALK_STEPS  # two walks and two columns before


def test_where_no_clock_ends_the_search_a_walk_prices_as_many_plans_as_the_columns_before():
    told = Told(steps=700)
    walk = taken(told, count=6)[5]
    assert walk.share == 1.0
    assert walk.evaluations == 4 * 700 + 700


def test_without_any_plan_the_turns_end():
    found = taken(Told(best=math.inf))
    assert engines(found) == ["walk", "walk", "columns", "proposals", "columns", "walk", "walk"]


def test_engines_that_price_nothing_more_end():
    found = taken(Told(steps=0))
    assert engines(found) == ["walk", "walk", "columns", "proposals", "columns", "walk", "walk"]
