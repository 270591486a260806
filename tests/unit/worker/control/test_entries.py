"""worker/control/entries.py: the answers of torch's own stores, epoch by epoch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from worker.control import entries
from worker.control.entries import EPOCHS_KEPT, Entries

KEYS = st.sampled_from(["a", "b"])
WORDS = st.sampled_from(["", "1", "2", "\xff\x00"])
REQUESTS = st.one_of(
    st.tuples(st.just("set"), KEYS, WORDS),
    st.tuples(st.just("add"), st.just("n"), st.integers(-5, 5)),
    st.tuples(st.just("check"), KEYS, KEYS),
    st.tuples(st.just("compare_set"), KEYS, WORDS, WORDS),
)


def by_torch(store, name, *arguments):
    if name == "check":
        return store.check(list(arguments))
    raw = [a.encode("latin-1") if isinstance(a, str) and i else a for i, a in enumerate(arguments)]
    found = getattr(store, name)(*raw)
    return found.decode("latin-1") if isinstance(found, bytes) else found


@given(st.lists(REQUESTS, max_size=12))
def test_the_answers_are_those_of_torch(requests):
    ours, theirs = Entries(), HashStore()
    for request in requests:
        assert ours.answer(1, list(request)) == by_torch(theirs, *request), request


def test_no_epoch_sees_the_entries_of_another():
    held = Entries()
    held.answer(1, ["set", "a", "1"])
    assert held.answer(1, ["get", "a"]) == "1"
    assert held.answer(2, ["get", "a"]) is None


@pytest.mark.parametrize("request_", [None, 7, [], ["get"], ["drop", "a"], [["get"], "a"]])
def test_what_is_no_request_is_refused(request_):
    with pytest.raises(ValueError, match="no request of a store"):
        Entries().answer(1, request_)


def test_a_full_store_takes_no_more(monkeypatch):
    monkeypatch.setattr(entries, "MAX_BYTES", 10)
    held = Entries()
    held.answer(1, ["set", "a", "12345"])
    held.answer(1, ["set", "a", "123456789"])
    with pytest.raises(ValueError, match="the store is full"):
        held.answer(1, ["set", "b", "1"])
    held.answer(1, ["set", "a", ""])
    held.answer(1, ["set", "b", "1"])


def test_epochs_of_long_ago_are_forgotten_and_make_room(monkeypatch):
    monkeypatch.setattr(entries, "MAX_BYTES", 3 * (EPOCHS_KEPT + 2))
    held = Entries()
    for epoch in range(1, 100):
        held.answer(epoch, ["set", "a", "12"])
    assert held.answer(99 - EPOCHS_KEPT, ["get", "a"]) == "12"
    assert held.answer(98 - EPOCHS_KEPT, ["get", "a"]) is None
