"""worker/world/group.py: members speak of each other by their ranks in the epoch."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import HashStore

from tests.unit.worker.ranks import run_ranks
from worker.control.activity import Activity
from worker.world.group import Group

RANKS = (1, 4, 6)  # of an epoch of at least seven


def claims(index, store):
    """What one of three members, ranks 1, 4 and 6 of their epoch, gets of the others."""
    rank, activity = RANKS[index], Activity()
    group = Group.form(store, "epoch1/group0", RANKS, rank, activity)
    found = {}
    for op in ("sum", "min", "max"):
        tensor = torch.tensor([float(rank)])
        group.all_reduce_(tensor, op)
        found[op] = tensor.item()
    tensor = torch.full((2, 2), float(rank))
    group.broadcast_(tensor, 6)
    found["broadcast"] = tensor.tolist()
    following, previous = RANKS[(index + 1) % 3], RANKS[index - 1]
    heard = torch.zeros(1)
    sent = group.start_send(torch.tensor([float(10 * rank)]), following)  # all send, none blocks
    group.recv(heard, previous)
    group.finish(sent)
    found["heard"] = heard.item()
    first = torch.tensor([1.0])
    works = [group.start_all_reduce_(tensor) for tensor in (first, heard)]  # both are under way
    for work in works:
        group.finish(work)
    found["together"] = [first.item(), heard.item()]
    found["ranks"] = list(group.ranks)
    return found


@pytest.mark.slow
def test_sums_broadcasts_and_messages_among_three_ranks():
    for index, found in enumerate(run_ranks("tests.unit.worker.world.test_group:claims", 3)):
        assert (found["sum"], found["min"], found["max"]) == (11.0, 1.0, 6.0)
        assert found["broadcast"] == [[6.0, 6.0], [6.0, 6.0]]
        assert found["heard"] == 10.0 * RANKS[index - 1]
        assert found["together"] == [3.0, 110.0]
        assert found["ranks"] == list(RANKS)


def test_who_waits_for_the_others_says_so_and_that_they_came_is_progress():
    activity = Activity()
    group = Group.form(HashStore(), "alone", (3,), 3, activity)
    said = []

    class Work:
        def wait(self):
            said.append(activity.waiting)

    before = activity.progress
    group.finish(Work())
    assert (said, activity.waiting, activity.progress) == ([True], False, before + 1)


def test_a_group_that_was_released_is_an_error_that_says_so():
    group = Group.form(HashStore(), "alone", (3,), 3, Activity())
    assert group.release() is not None
    assert group.release() is None
    calls = (
        lambda: group.all_reduce_(torch.zeros(1)),
        lambda: group.broadcast_(torch.zeros(1), 3),
        lambda: group.start_send(torch.zeros(1), 3),
        lambda: group.recv(torch.zeros(1), 3),
    )
    for call in calls:
        with pytest.raises(ConnectionError, match="the world of this epoch is gone"):
            call()
