"""rank/mailbox.py: a thread of its own beats and hears, whatever the main thread does."""

from __future__ import annotations

import contextlib
import ctypes
import json
import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.control.activity import Activity
from worker.control.channel import BEAT_S, Channel
from worker.control.messages import HaltNow, Save
from worker.rank.mailbox import Mailbox

QUICK_S = 0.02
LIMIT_S = 10.0


@pytest.fixture
def quick(monkeypatch):
    """Heartbeats of fifty a second."""
    monkeypatch.setattr("worker.rank.mailbox.BEAT_S", QUICK_S)


@pytest.fixture
def ends():
    """The agent's end, and the rank's."""
    with pair() as found:
        yield found


@contextlib.contextmanager
def pair():
    """Both ends; the agent goes first, so that no mailbox outlives its channel."""
    agent, rank = socket.socketpair()
    with rank:
        with agent:
            yield agent, rank
        until_s = time.monotonic() + 5
        while any(t.name == "mailbox" for t in threading.enumerate()):
            assert time.monotonic() < until_s, "a mailbox did not end with its agent"
            time.sleep(0.001)


def tell(agent, message):
    agent.sendall(message.to_line())


def halt(text="a peer is silent"):
    return HaltNow(epoch=3, sentence=text)


def kept(rank, activity=None, on_urgent=lambda message: None):
    return Mailbox(Channel(rank), activity or Activity(), on_urgent)


def beats(agent):
    """The heartbeats that have come."""
    data = b""
    agent.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            data += agent.recv(1 << 16)
    agent.setblocking(True)
    return [json.loads(line) for line in data.splitlines()]


def test_a_beat_says_what_the_rank_does(ends):
    agent, rank = ends
    activity = Activity()
    activity.begin("transfer")
    activity.advance()
    with activity.wait():
        kept(rank, activity)
        agent.settimeout(LIMIT_S)
        beat = json.loads(agent.recv(1 << 16))  # the first one comes at once, the next in a second
    assert beat == {"type": "beat", "progress": 2, "part": "transfer", "waiting": True}


@pytest.mark.usefixtures("quick")
def test_it_beats_while_the_main_thread_sleeps_in_c(ends):
    agent, rank = ends
    began_s = time.monotonic()
    kept(rank)
    ctypes.CDLL(None).usleep(ctypes.c_uint(int(20 * QUICK_S * 1e6)))
    found = len(beats(agent))
    assert 5 <= found <= (time.monotonic() - began_s) / QUICK_S + 1  # a busy machine delays some


@pytest.mark.slow  # a second must pass
def test_it_beats_once_a_second(ends):
    agent, rank = ends
    assert BEAT_S == 1.0
    began_s = time.monotonic()
    kept(rank)
    agent.settimeout(LIMIT_S)
    with agent.makefile("rb") as lines:
        for _ in range(3):  # the first one comes at once
            next(lines)
    assert 2 * BEAT_S <= time.monotonic() - began_s < 4 * BEAT_S


@pytest.mark.usefixtures("quick")
def test_messages_hold_up_no_beat(ends):
    """An agent that talks without end still hears that the rank lives."""
    agent, rank = ends
    mailbox = kept(rank)
    until_s, heard = time.monotonic() + LIMIT_S, 0
    while heard < 4:
        assert time.monotonic() < until_s
        tell(agent, Save())
        mailbox.next(LIMIT_S)
        heard += len(beats(agent))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.text(max_size=9), min_size=1, max_size=8))
def test_messages_come_in_order(texts):
    with pair() as (agent, rank):
        mailbox = kept(rank)
        for text in texts:
            tell(agent, halt(text))
        assert [mailbox.next(10).sentence for _ in texts] == texts
        assert mailbox.next(0) is None


def test_without_a_message_it_waits_as_long_as_it_is_told(ends):
    mailbox = kept(ends[1])
    assert mailbox.next(0) is None
    start_s = time.monotonic()
    assert mailbox.next(0.05) is None
    assert time.monotonic() - start_s >= 0.05


def test_what_cannot_wait_is_done_before_the_message_is_read(ends):
    agent, rank = ends
    heard, done = [], threading.Event()

    def on_urgent(message):
        heard.append((message.type, threading.current_thread().name))
        done.set()

    mailbox = kept(rank, on_urgent=on_urgent)
    tell(agent, halt())
    assert done.wait(5)  # nobody has read the mailbox
    assert heard == [("halt", "mailbox")]
    assert mailbox.next(5) == halt()


def test_what_the_agent_said_is_read_though_it_hears_no_heartbeat(ends):
    agent, rank = ends
    rank.shutdown(socket.SHUT_WR)  # as if it had closed between a look and the heartbeat
    mailbox = kept(rank)
    assert mailbox.next(0.2) is None
    tell(agent, halt())
    assert mailbox.next(5) == halt()


def test_once_the_agent_is_gone_what_it_said_is_read_and_then_it_ends(ends):
    agent, rank = ends
    mailbox = kept(rank)
    tell(agent, halt())
    agent.close()
    assert mailbox.next(5) == halt()
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            mailbox.next(5)
        assert end.value.code == 0
