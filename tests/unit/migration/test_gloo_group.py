"""What forming a group of gloo must do: have a deadline once all have met, and be patient later."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from migration.gloo_group import form_gloo
from worker.control.store_client import StoreClient

FORM_S = 1.5
PATIENCE_S = 60.0
TRIES = 20  # by chance gloo makes either of two members wait for the other's connection


class Held(StoreClient):
    """A store at which one member meets, publishes its address and then comes no further."""

    def __init__(self, store):
        super().__init__(store)
        self.released = threading.Event()

    def get(self, key):
        assert self.released.wait(PATIENCE_S)
        raise RuntimeError("given up")

    def wait(self, keys, timeout=None):
        if not all("here" in key for key in keys):
            self.get(keys[0])
        super().wait(keys, timeout)


def threads_and_descriptors():
    return tuple(len(list(Path("/proc/self", of).iterdir())) for of in ("task", "fd"))


def waits_passively(number):
    """Form with a member that publishes its address only; whether this one gave it up."""
    store = HashStore()
    held = Held(store)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(form_gloo, held, f"e{number}", 0, 2, PATIENCE_S)
        try:
            began_s = time.monotonic()
            form_gloo(StoreClient(store), f"e{number}", 1, 2, PATIENCE_S, FORM_S)
        except RuntimeError:
            assert FORM_S <= time.monotonic() - began_s < 3 * FORM_S  # gloo by itself takes five
            return True
        finally:
            held.released.set()
            assert isinstance(other.exception(PATIENCE_S), RuntimeError)
    return False


def test_a_member_whose_peer_never_connects_gives_up_and_keeps_nothing():
    waits_passively("first")  # what torch makes once stays
    before = threads_and_descriptors()
    assert any(waits_passively(number) for number in range(TRIES))
    deadline_s = time.monotonic() + 10  # gloo closes in threads
    while threads_and_descriptors() > before and time.monotonic() < deadline_s:
        time.sleep(0.01)
    threads, descriptors = threads_and_descriptors()
    assert threads <= before[0]
    assert descriptors <= before[1]


def test_a_member_that_is_late_at_the_store_is_waited_for():
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(form_gloo, StoreClient(store), "late", 0, 2, PATIENCE_S, FORM_S)
        time.sleep(1.5 * FORM_S)
        assert not first.done()
        second = pool.submit(form_gloo, StoreClient(store), "late", 1, 2, PATIENCE_S, FORM_S)
        groups = [member.result() for member in (first, second)]  # who has one keeps it
        assert [one.group.rank() for one in groups] == [0, 1]


def broadcast(group, tensor, place):
    options = dist.BroadcastOptions()
    options.rootRank = 1
    group.group.broadcast([tensor], options).wait()


def message(group, tensor, place):
    (group.send(tensor, 0) if place == 1 else group.recv(tensor, 1)).wait()


def reduced(group, tensor, place):
    group.group.allreduce([tensor], dist.AllreduceOptions()).wait()


def all_to_all(group, tensor, place):
    options = dist.AllToAllOptions()
    group.group.alltoall_base(torch.empty_like(tensor), tensor, [1, 1], [1, 1], options).wait()


@pytest.mark.parametrize("operation", [reduced, broadcast, message, all_to_all])
def test_a_group_that_stands_waits_longer_than_it_took_to_form(operation):
    store = HashStore()

    def member(place):
        group = form_gloo(store, operation.__name__, place, 2, PATIENCE_S, FORM_S)
        if place == 1:
            time.sleep(2 * FORM_S)
        operation(group, torch.ones(2), place)
        return "done"

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(member, range(2))) == ["done", "done"]
