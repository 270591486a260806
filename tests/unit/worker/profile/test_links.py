"""Measured links: times by size, and no more pairs than nodes."""

from __future__ import annotations

import pytest

from tests.unit.worker.ranks import run_ranks
from worker.profile.links import inside_node, link_of, pairs_of


def test_the_smallest_message_is_the_latency_and_the_largest_give_the_rate():
    link = link_of([(1000.0, 3.0), (10.0, 1.0), (2000.0, 5.0)])
    assert (link.latency_s, link.bandwidth_bytes_per_s) == (1.0, 500.0)
    assert [link.seconds(size) for size in (1, 1500, 4000)] == [1.0, 4.0, 9.0]
    assert link_of([(10.0, 2.0)]).bandwidth_bytes_per_s == 5.0


def test_each_node_is_measured_with_the_next_of_its_domain():
    assert pairs_of(["a", "b", "a", "a", "b", "c"]) == ((0, 2), (2, 3), (1, 4))
    assert len(pairs_of(["a"] * 1000)) == 999
    assert pairs_of(["a"]) == ()


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["nccl", "staged"])
def test_two_processes_of_this_machine_measure_their_link(wire):
    message, reduced, group_bytes = inside_node("cpu", 2, sizes=(1024, 65536), repeats=2, wire=wire)
    assert group_bytes == 0  # their memory is the host's
    assert [size for size, _ in message.points] == [1024.0, 65536.0]
    assert all(seconds > 0 for _, seconds in (*message.points, *reduced.points))


@pytest.mark.slow
def test_the_bytes_of_a_group_are_read_once_it_is_connected_on_a_device():
    """It is connected by a sum, and by messages both ways; then it is given up."""
    claim = "tests.unit.worker.profile.group_claims:bytes_of_a_group"
    assert run_ranks(claim, 3) == [[1110, 1]] * 3
