"""worker/meeting.py: all come, one is missing, the epoch is given up."""

import threading
import time

import pytest
from torch.distributed import HashStore

from worker.errors import MeetingFailed
from worker.meeting import meet


def test_nobody_passes_before_the_last_one_is_there():
    store, passed = HashStore(), []

    def come() -> None:
        meet(store, 3, 3, lambda: False, 5.0)
        passed.append(time.monotonic())

    threads = [threading.Thread(target=come) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    assert not passed
    come()
    for thread in threads:
        thread.join(5.0)
    assert len(passed) == 3


def test_who_is_told_to_give_up_stops_waiting_at_once():
    start = time.monotonic()
    with pytest.raises(MeetingFailed, match="epoch 4 was given up before all its ranks were there"):
        meet(HashStore(), 4, 2, lambda: time.monotonic() > start + 0.05, 30.0)
    assert time.monotonic() < start + 5.0


def test_a_missing_rank_is_waited_for_only_so_long():
    with pytest.raises(MeetingFailed, match=r"1 of the 2 ranks of epoch 4 came within 0\.02 s"):
        meet(HashStore(), 4, 2, lambda: False, 0.02)


def test_epochs_at_one_store_do_not_meet_each_other():
    store = HashStore()
    meet(store, 1, 1, lambda: False, 1.0)
    with pytest.raises(MeetingFailed):
        meet(store, 2, 2, lambda: False, 0.01)
