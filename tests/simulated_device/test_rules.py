"""The simulated device names each offence, and the law finds what NCCL would never run."""

from __future__ import annotations

import pytest

from tests.simulated_device.law import disorder, stuck
from tests.unit.worker.ranks import run_ranks


@pytest.mark.slow
def test_every_offence_is_named_and_what_is_meant_is_none():
    (said,) = run_ranks("tests.simulated_device.offences:claims", 1)
    assert {name: text and text.partition(":")[0] for name, text in said.items()} == {
        "a sum of both sides": "mixes devices",
        "a number past the device": "waits",
        "numbers past the device": "waits",
        "a copy past the device": "waits",
        "a copy from plain memory": "unpinned copy",
        "a host tensor on a wire": "host tensor on a wire",
        "a thread beside the one that trains": "another thread issues",
        "a number that no peer had a part in": None,
        "the time of work that nobody has awaited": "reads a mark too early",
        "the time of work once a number behind it is read": None,
        "the time of work once the device has settled": None,
        "what is meant": None,
    }


def log(me, *does, comm="c"):
    """Rows of a rank of two: (what, peer) in the order of their issue, awaited in that order."""
    rows = [["issue", n, "t", comm, what, peer, me, 2] for n, (what, peer) in enumerate(does)]
    return [*rows, *(["wait", *row[1:]] for row in rows)]


def test_two_ranks_that_send_first_and_then_receive_are_stuck():
    both = [log(me, ("send", 1 - me), ("recv", 1 - me)) for me in (0, 1)]
    assert len(stuck(both)) == 2


def test_one_that_sends_to_one_that_receives_is_not():
    assert stuck([log(0, ("send", 1), ("recv", 1)), log(1, ("recv", 0), ("send", 0))]) == []


def test_a_wait_before_the_peers_part_is_issued_is_stuck():
    first = [row for row in log(0, ("all_reduce", -1)) if row]
    assert stuck([first, []]) == ["rank 0: all_reduce -1 on c"]


def test_collectives_of_two_communicators_in_two_orders_are_found():
    one = [*log(0, ("all_reduce", -1), comm="c"), *log(0, ("all_reduce", -1), comm="d")]
    other = [*log(1, ("all_reduce", -1), comm="d"), *log(1, ("all_reduce", -1), comm="c")]
    assert len(disorder([one, other])) == 1
    assert disorder([one, one]) == []
