"""worker/rank/vote.py: the first outcome that is written is the outcome, for everybody."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore, TCPStore

from worker.rank.vote import Vote


def voters(size, epoch=3, store=None):
    store = HashStore() if store is None else store
    return [Vote(store, epoch, size) for _ in range(size)]


def test_nothing_is_decided_before_the_last_vote():
    first, second, third = voters(3)
    first.cast()
    second.cast()
    assert {vote.outcome() for vote in (first, second, third)} == {None}
    third.cast()
    assert {vote.outcome() for vote in (first, second, third)} == {"commit"}


def test_an_abort_after_the_commit_changes_nothing():
    first, second = voters(2)
    first.cast()
    second.cast()
    first.abort()
    assert second.outcome() == "commit"


def test_an_abort_before_the_last_vote_stands():
    first, second = voters(2)
    first.cast()
    first.abort()
    second.cast()
    assert (first.outcome(), second.outcome()) == ("abort", "abort")


def test_the_votes_of_one_epoch_do_not_count_in_another():
    store = HashStore()
    old, new = voters(2, 3, store), voters(2, 4, store)
    old[0].cast()
    new[0].cast()
    assert (old[1].outcome(), new[1].outcome()) == (None, None)
    old[1].cast()
    assert (old[0].outcome(), new[0].outcome()) == ("commit", None)


@settings(max_examples=15)
@given(
    st.integers(1, 5), st.lists(st.integers(0, 4), max_size=4), st.randoms(use_true_random=False)
)
def test_whatever_the_order_the_outcome_never_changes(size, aborting, random):
    votes = voters(size)
    acts = [(vote, "cast") for vote in votes] + [(votes[i % size], "abort") for i in aborting]
    random.shuffle(acts)
    last_cast = max(i for i, (_, act) in enumerate(acts) if act == "cast")
    aborts = [i for i, (_, act) in enumerate(acts) if act == "abort"]
    seen = []
    for vote, act in acts:
        getattr(vote, act)()
        seen.append({vote.outcome() for vote in votes})
    assert all(len(outcomes) == 1 for outcomes in seen)
    decided = [outcome for (outcome,) in seen if outcome is not None]
    assert set(decided) == {"abort" if min(aborts, default=last_cast) < last_cast else "commit"}


def test_a_store_that_is_gone_is_an_error_not_an_outcome():
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    (vote,) = voters(1, store=client)
    assert vote.outcome() is None
    del server
    for act in (vote.cast, vote.abort, vote.outcome):
        with pytest.raises(RuntimeError):
            act()
