"""Who sends how much: the same node first, then the least loaded card and port."""

from __future__ import annotations

from collections import Counter

import pytest

from migration.balance import Loads, filled, share_out
from migration.classes import MovingClass
from migration.links import Links, usual_links
from planner.plans.state_rule import PARTS

SIZE = 60_000_000


def moving(holders, receivers, size=SIZE):
    return MovingClass(PARTS, (0,), tuple(holders), tuple(receivers), size)


def sent(runs):
    found = Counter()
    for run in runs:
        found[run.sender] += run.stop - run.start
        found[run.receiver] += (run.stop - run.start) * len(run.relays)
    return +found


def share(classes, nodes, links=None, grain_bytes=1):
    return share_out(classes, nodes, links or usual_links(max(nodes) + 1), grain_bytes)


def test_water_rises_on_the_lowest_first():
    assert filled([0.0, 3.0, 1.0], 3.0) == [2.0, 0.0, 1.0]
    assert filled([5.0, 5.0], 4.0) == [2.0, 2.0]
    assert filled([1.0], 0.0) == [0.0]


def test_a_holder_on_the_node_of_the_receiver_sends_all():
    runs = share([moving([0, 1], [2])], (0, 1, 1))
    assert sent(runs) == {1: SIZE}


def test_equal_holders_share_a_class():
    assert sent(share([moving([0, 1, 2], [3])], (0, 1, 2, 3))) == dict.fromkeys(range(3), SIZE // 3)


def test_ranks_of_one_node_share_its_network_card():
    """Ranks 0 and 1 share a card, so rank 2 on another node sends as much as both."""
    found = sent(share([moving([0, 1, 2], [3])], (0, 0, 1, 2)))
    assert found[2] == pytest.approx(SIZE / 2, rel=1e-6)


def test_a_faster_card_sends_more():
    links = Links((24e9, 12e9, 12e9), 1e12)
    found = sent(share([moving([0, 1], [2])], (0, 1, 2), links))
    assert found[0] == pytest.approx(2 * found[1], rel=1e-6)


def test_a_scarce_class_is_served_first_and_the_others_go_around_it():
    scarce, common = moving([0], [3]), moving([0, 1], [3])
    assert sent(share([common, scarce], (0, 1, 2, 3))) == {0: SIZE, 1: SIZE}


def test_receivers_of_a_node_get_a_stripe_each_and_hand_it_on():
    runs = share([moving([0], [1, 2, 3])], (0, 1, 1, 1))
    assert sum(run.stop - run.start for run in runs) == SIZE  # over the card once
    assert {run.receiver: run.relays for run in runs} == {1: (2, 3), 2: (1, 3), 3: (1, 2)}
    loads = Loads(links=usual_links(2), nodes=(0, 1, 1, 1))
    for run in runs:
        loads.add(run)
    assert loads.nic_in[1] == pytest.approx(SIZE / 12e9)
    assert loads.port_in[1:] == pytest.approx([SIZE / 20e9] * 3)
    assert loads.port_out[1:] == pytest.approx([SIZE * 2 / 3 / 20e9] * 3)


def test_a_class_for_several_nodes_is_laid_out_over_its_holders_once():
    runs = share([moving([0, 1], [2, 3])], (0, 1, 2, 3))
    assert len(runs) == 2
    assert sent(runs) == {0: SIZE, 1: SIZE}


def test_less_than_a_grain_is_not_shared():
    assert len(share([moving([0, 1, 2], [3, 4])], (0, 1, 2, 3, 3), grain_bytes=10**9)) == 1
    cuts = {run.start for run in share([moving([0, 1, 2], [3])], (0, 1, 2, 3), None, 7_000_000)}
    assert all(cut % 7_000_000 == 0 for cut in cuts)


def test_taking_a_run_off_leaves_no_load():
    runs = share([moving([0], [1, 2])], (0, 1, 1))
    loads = Loads(links=usual_links(2), nodes=(0, 1, 1))
    for sign in (1, -1):
        for run in runs:
            loads.add(run, sign)
    assert loads.longest_s() == pytest.approx(0.0)
