"""migration/links.py: rates of ports and cards, and the makespan of a move by them."""

from __future__ import annotations

import pytest

from migration.balance import Loads, Run
from migration.links import NIC_BYTES_PER_S, staged_links, usual_links
from planner.profiles.staged import GLOO_BYTES_PER_S


def test_a_staged_port_copies_a_byte_and_then_sends_it():
    links = staged_links(2, copy_bytes_per_s=50e9)
    assert 1 / links.port_bytes_per_s == pytest.approx(1 / 50e9 + 1 / GLOO_BYTES_PER_S)
    assert links.nic_bytes_per_s == (NIC_BYTES_PER_S,) * 2 == usual_links(2).nic_bytes_per_s


def test_a_move_through_host_memory_takes_both_copies_in_series():
    """One gigabyte between two nodes: the sender's port is the busiest, before the card."""
    loads = Loads(links=staged_links(2, copy_bytes_per_s=50e9), nodes=(0, 1))
    loads.add(Run(0, 0, 10**9, 0, 1, ()))
    assert loads.longest_s() == pytest.approx(1 / 50 + 1 / 2)
