"""What only the gloo transport must do: form with a time limit, and beside a live default group."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from migration.errors import TransferFailed
from migration.gloo_transport import GlooTransport


def test_forming_without_the_other_members_fails_in_time():
    started = time.monotonic()
    with pytest.raises(TransferFailed):
        GlooTransport.form(HashStore(), "e2", 0, 2, timeout_s=0.3)
    assert time.monotonic() - started < 5


def test_forming_touches_no_default_group():
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        formed = list(pool.map(lambda r: GlooTransport.form(store, "e3", r, 2, 10), range(2)))
    assert not torch.distributed.is_initialized()
    for transport in formed:
        transport.close(wait=True)


def test_a_silent_peer_is_given_up_after_the_time_limit():
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda r: GlooTransport.form(store, "e4", r, 2, 0.3), range(2)))
    with pytest.raises(TransferFailed):
        ends[0].post_receive(1, torch.zeros(4, dtype=torch.uint8)).wait()
    for transport in ends:
        transport.close(wait=True)
