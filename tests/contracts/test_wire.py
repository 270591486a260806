"""Every `Wire` keeps the contract: gloo, staging memory, NCCL's over gloo, recorded ones."""

from __future__ import annotations

import pytest

from tests.contracts.wire_contract import ROWS, SIZE
from tests.unit.worker.ranks import run_ranks


@pytest.fixture(
    scope="module", params=["gloo", "staged", "recorded", "nccl_over_gloo", "nccl_with_garbage"]
)
def found(request):
    """What each of three ranks saw."""
    return run_ranks(f"tests.contracts.wire_contract:{request.param}", SIZE)


@pytest.mark.slow
def test_sums_broadcasts_and_messages_reach_every_member(found):
    for rank, of in enumerate(found):
        assert (of["sum"], of["min"], of["max"]) == ([3.0, 6.0], [0.0, 1.0], [2.0, 3.0])
        assert of["broadcast"] == [2.0]
        assert of.get("message") == ([10.0 + rank] if rank else None)
        assert of["two under way"] == [[3.0], [30.0]]


@pytest.mark.slow
def test_messages_of_a_round_go_both_ways_and_keep_their_order(found):
    for rank, of in enumerate(found):
        peers = [peer for peer in range(SIZE) if peer != rank]
        assert of["round"] == {str(peer): [10.0 * peer, 10.0 * peer + 1] for peer in peers}


@pytest.mark.slow
def test_each_member_gets_its_rows_of_all_in_their_order(found):
    for name, rows in ROWS.items():
        for rank, of in enumerate(found):
            peers = (peer for peer in range(SIZE) for _ in range(rows[peer][rank]))
            assert of[name] == [100.0 * peer + rank for peer in peers]


@pytest.mark.slow
def test_each_member_gets_the_shares_of_all_in_their_places(found):
    assert [of["gathered"] for of in found] == [[0.0, 1.0, 12.0, 13.0, 24.0, 25.0]] * SIZE


@pytest.mark.slow
def test_host_tensors_go_over_the_wire_below_if_there_is_one(found):
    assert {str(of.get("control")) for of in found} <= {"[3.0]", "None"}


@pytest.mark.slow
def test_who_aborts_ends_every_wait_here_and_at_the_peers(found):
    assert [of["ended"] for of in found] == [True] * SIZE
    assert [of["exchange ended"] for of in found] == [True] * SIZE
