"""worker/control/cancellable_store.py: it waits as a store does, until it is told to give up."""

import datetime
import threading
import time

import pytest
import torch
from torch.distributed import HashStore, PrefixStore, ProcessGroupGloo

from worker.control.cancellable_store import CancellableStore
from worker.errors import RendezvousFailed


def test_what_is_written_is_read_through_a_prefix_too():
    inner = HashStore()
    patient = CancellableStore(inner, lambda: False, 5.0)
    store = PrefixStore("epoch1", patient)
    store.set("a", "1")
    assert (store.get("a"), inner.get("epoch1/a")) == (b"1", b"1")
    assert (store.add("n", 2), store.add("n", 3)) == (2, 5)
    assert store.check(["a"])
    assert not store.check(["b"])
    assert store.compare_set("a", "1", "2") == b"2"


def test_a_value_is_waited_for():
    inner = HashStore()
    threading.Timer(0.02, inner.set, ("late", "x")).start()
    assert CancellableStore(inner, lambda: False, 5.0).get("late") == b"x"


def test_a_wait_ends_when_it_is_given_up_or_takes_too_long():
    start = time.monotonic()
    told = CancellableStore(HashStore(), lambda: time.monotonic() > start + 0.02, 30.0)
    with pytest.raises(RendezvousFailed, match="the epoch was given up while its ranks met"):
        told.get("never")
    with pytest.raises(RendezvousFailed, match=r"did not come within 0\.01 s \(never\)"):
        CancellableStore(HashStore(), lambda: False, 30.0).wait(
            ["never"], datetime.timedelta(seconds=0.01)
        )
    assert time.monotonic() < start + 10.0


def test_torch_forms_a_group_through_it_or_gives_up_forming():
    inner, timeout = HashStore(), datetime.timedelta(seconds=30)
    patients, groups = [], []

    def form(rank: int) -> None:
        store = CancellableStore(inner, lambda: False, 30.0)
        patients.append(store)
        groups.append(ProcessGroupGloo(PrefixStore("g", store), rank, 2, timeout))

    threads = [threading.Thread(target=form, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    tensors = [torch.ones(1), torch.ones(1)]
    works = [group.allreduce([tensor]) for group, tensor in zip(groups, tensors, strict=True)]
    for work in works:
        work.wait()
    assert [tensor.item() for tensor in tensors] == [2.0, 2.0]
    alone, start = CancellableStore(inner, lambda: True, 30.0), time.monotonic()
    with pytest.raises(RendezvousFailed, match="given up"):
        ProcessGroupGloo(PrefixStore("h", alone), 0, 2, timeout)
    assert time.monotonic() < start + 10.0
