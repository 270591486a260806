"""worker/control/channel.py: whole messages in order, and an end when the agent is gone."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.control.channel import Channel
from worker.control.messages import Beat, HaltNow, Save, StoreListens

BEAT = Beat(progress=0, part="forward", waiting=False)


@pytest.fixture
def ends():
    """The agent's end, as a socket, and the child's channel."""
    agent, child = socket.socketpair()
    with agent, child:
        yield agent, Channel(child)


def halt(text="a peer is silent"):
    return HaltNow(epoch=1, sentence=text)


def test_looking_waits_for_nothing(ends):
    assert ends[1].receive(0) is None


def test_half_a_message_is_none(ends):
    agent, channel = ends
    agent.sendall(b'{"type": ')
    assert channel.receive(0) is None
    agent.sendall(b'"save-now"}\n')
    assert channel.receive(0) == Save()


@settings(max_examples=15)
@given(st.lists(st.text(max_size=9), min_size=1, max_size=4), st.integers(1, 60))
def test_messages_arrive_whole_and_in_order_however_they_are_cut(texts, size):
    agent, child = socket.socketpair()
    with agent, child:
        channel, received = Channel(child), []
        data = b"".join(halt(text).to_line() for text in texts)
        for start in range(0, len(data), size):
            agent.sendall(data[start : start + size])
            while (message := channel.receive(0)) is not None:
                received.append(message.sentence)
    assert received == texts


def test_a_message_is_waited_for(ends):
    agent, channel = ends
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channel.receive, None)
        agent.sendall(Save().to_line())
        assert waiting.result(10) == Save()


def test_a_message_longer_than_one_read_arrives_whole(ends):
    agent, channel = ends
    with ThreadPoolExecutor(1) as pool:
        pool.submit(agent.sendall, halt("x" * 1_000_000).to_line())
        assert channel.receive(10) == halt("x" * 1_000_000)


def test_what_was_said_before_the_agent_went_is_still_heard(ends):
    agent, channel = ends
    agent.sendall(halt().to_line() + Save().to_line())
    agent.close()
    assert [channel.receive(None) for _ in range(2)] == [halt(), Save()]
    with pytest.raises(SystemExit):
        channel.receive(None)


def test_an_agent_that_went_without_reading_all_is_gone_all_the_same(ends):
    """As one that was killed: the kernel then answers with an error, and not with the end."""
    agent, channel = ends
    channel.send(BEAT)
    agent.sendall(halt().to_line())
    agent.close()
    assert channel.receive(None) == halt()
    with pytest.raises(SystemExit):
        channel.receive(None)


def test_without_its_agent_a_child_ends_well_at_its_next_word(ends):
    agent, channel = ends
    agent.close()
    with pytest.raises(SystemExit) as end:
        channel.send(BEAT)
    assert end.value.code == 0


def test_two_threads_never_mix_their_messages(ends):
    agent, channel = ends
    start = threading.Barrier(2)

    def say(name):
        start.wait()
        for _ in range(50):
            channel.send(StoreListens(address=name * 20_000))

    with ThreadPoolExecutor(2) as pool:
        for name in ("a", "b"):
            pool.submit(say, name)
        with agent.makefile("rb") as lines:
            heard = [json.loads(next(lines)) for _ in range(100)]
    assert {message["address"] for message in heard} == {"a" * 20_000, "b" * 20_000}
