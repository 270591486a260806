"""rank/messages.py: what comes while a rank must not act on it is kept, in order."""

from __future__ import annotations

import time

import pytest

from tests.unit.worker.changes import change, plan
from tests.unit.worker.rank.test_mailbox import pair
from tests.unit.worker.switches import Watched
from worker.control.activity import Activity
from worker.control.channel import Channel
from worker.control.messages import Follow, Save
from worker.rank.messages import Messages
from worker.rank.rank import Rank

LIMIT_S = 5.0


@pytest.fixture
def agent_and_rank():
    with pair() as (agent, rank):
        yield Channel(agent), Channel(rank)


def told(epoch):
    return Follow(directive=change(plan("1x2"), plan("1x2"), epoch=epoch))


def test_what_was_only_heard_is_next_and_in_order(agent_and_rank):
    agent, rank = agent_and_rank
    messages = Messages(rank, 0, Activity(), lambda message: None)
    for epoch in (3, 4):
        agent.send(told(epoch))
    heard = messages.next(LIMIT_S)
    assert heard.epoch == 3
    agent.send(told(5))
    agent.send(Save())
    until_s = time.monotonic() + LIMIT_S
    while len(messages._heard) < 3:
        messages.hear()
        assert time.monotonic() < until_s
    assert [messages.next(0).epoch for _ in range(2)] == [4, 5]
    assert messages.next(0) is None


def test_a_rank_whose_change_is_under_way_prepares_no_newer_epoch(agent_and_rank):
    agent, end = agent_and_rank
    rank = Rank(end, "a", 0, Watched())
    agent.send(told(4))
    until_s = time.monotonic() + LIMIT_S
    while not rank._messages._heard:
        assert not rank._is_aborted(3)
        assert time.monotonic() < until_s
    assert not rank._change.is_preparing
    assert rank._messages.next(0).epoch == 4
