"""A node that is not ready again and again is waited for twice as long each time."""

from __future__ import annotations

import pytest

from heddle_operator.inventory.node_flaps import PAUSE_LIMIT_S, PAUSE_S, WINDOW_S, NodeFlaps


class Node:
    """A node whose kubelet goes and comes."""

    def __init__(self):
        self.flaps = NodeFlaps()
        self.times = 0
        self.come(0.0)

    def go(self, now):
        self.flaps.seen("a", None, now)

    def come(self, now):
        self.times += 1
        self.flaps.seen("a", f"time {self.times}", now)

    def flap(self, now):
        found = self.flaps.flap("a", now)
        return found and (found.pause_s, found.until_s)


@pytest.fixture
def node():
    return Node()


def test_a_node_that_was_gone_once_is_waited_for_as_any_other(node):
    node.go(10.0)
    node.come(20.0)
    assert node.flap(21.0) is None


def test_each_further_departure_doubles_the_pause_up_to_a_limit(node):
    pauses = []
    for at in range(10, 160, 16):
        node.go(float(at))
        node.come(at + 8.0)
        found = node.flap(at + 9.0)
        if found:
            assert found[1] == at + 8.0 + found[0]
            pauses.append(found[0])
    assert pauses == [min(PAUSE_LIMIT_S, PAUSE_S * 2**n) for n in range(9)]


def test_departures_that_nobody_saw_are_known_by_the_node_s_own_word(node):
    node.come(10.0)
    node.come(20.0)
    assert node.flap(20.0) == (PAUSE_S, 20.0 + PAUSE_S)
    node.flaps.seen("a", f"time {node.times}", 30.0)
    assert node.flap(30.0) == (PAUSE_S, 20.0 + PAUSE_S)


def test_what_is_past_the_window_is_forgotten(node):
    for at in (10.0, 20.0):
        node.go(at)
        node.come(at + 1)
    assert node.flap(10.0 + WINDOW_S - 1) is not None
    assert node.flap(10.0 + WINDOW_S) is None
    assert node.flap(20.0 + WINDOW_S) is None


def test_a_series_has_one_beginning(node):
    for at in (10.0, 400.0, 900.0, 1400.0):
        node.go(at)
        node.come(at + 1)
    assert node.flaps.flap("a", 1401.0).began_s == 10.0


def test_nodes_that_never_come_back_are_forgotten():
    flaps = NodeFlaps()
    for number in range(100):
        now = 100.0 * number
        for ready_since in ("first", None, "again"):
            flaps.seen(f"steady-{number}", "first", now)
            flaps.seen(f"spot-{number}", ready_since, now)
        flaps.gone(f"steady-{number}")
        flaps.gone(f"spot-{number}")
    known = {name for row in vars(flaps).values() for name in row}
    assert known <= {f"spot-{number}" for number in range(93, 100)}


def test_a_node_that_was_made_anew_has_not_left(node):
    for at in (10.0, 20.0, 30.0):
        node.flaps.gone("a")
        node.come(at)
    assert node.flap(31.0) is None
