"""world/stage_links.py: every rank of the next stage gets the activation once, and so back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.evaluate import RankTimes
from planner.plans.ranks import RankMap
from tests.simulated_device.law import disorder, stuck
from tests.unit.worker.changes import MODEL, plan
from tests.unit.worker.ranks import run_ranks
from worker.control.activity import Activity
from worker.device.device import CPU
from worker.world.gloo_wire import GlooWire
from worker.world.pace import EmulatedPace, RealPace
from worker.world.stage_links import WHOLE, LinksOfThread, StageLinks, link_messages
from worker.world.world import World, rank_sets

degrees = st.sampled_from([1, 2, 4, 8])
GROWS = plan("1x1+2x1")  # rank 0, then ranks 1 and 2


def pairs_of(source, target):
    """(sending rank, receiving rank) of messages that carry the whole tensor."""
    messages = link_messages(source, target, is_cut=False)
    assert {message.share for message in messages} == {WHOLE}
    return [(message.sender, message.receiver) for message in messages]


@given(degrees, degrees)
def test_every_rank_of_the_target_hears_one_sender_and_senders_share_the_work(t, u):
    source, target = tuple(range(t)), tuple(range(t, t + u))
    pairs = pairs_of(source, target)
    assert [receiver for _, receiver in pairs] == list(target)
    sent = [sum(sender == rank for sender, _ in pairs) for rank in source]
    assert max(sent) == max(1, u // t)
    if u >= t:
        assert sent == [u // t] * t
    else:
        assert [rank for rank in source if sent[rank]] == list(range(0, t, t // u))


@given(degrees, degrees)
def test_where_tp_grows_gradients_come_from_the_first_that_was_fed(t, u):
    source, target = tuple(range(t)), tuple(range(t, t + u))
    fed = pairs_of(source, target)
    if u >= t:
        for sender, receiver in pairs_of(target, source):
            assert sender == min(rank for feeder, rank in fed if feeder == receiver)


@given(degrees, degrees)
def test_between_nodes_the_tensor_crosses_once_over_all_ranks_of_both_stages(t, u):
    source, target = tuple(range(t)), tuple(range(t, t + u))
    messages = link_messages(source, target, is_cut=True)
    most = max(t, u)
    assert [message.share for message in messages] == [(i, most) for i in range(most)]
    for rank in source:
        assert sum(message.sender == rank for message in messages) == most // t
    for slot, rank in enumerate(target):  # its own share of the TP group, in one run
        came = [message.share[0] for message in messages if message.receiver == rank]
        assert came == list(range(slot * most // u, (slot + 1) * most // u))
    pairs = [(message.sender, message.receiver) for message in messages]
    assert set(pairs_of(source, target)) <= set(pairs)  # for a tensor that cannot be cut


def test_a_degree_that_does_not_divide_the_other_sends_the_whole():
    messages = link_messages((0, 1, 2), (3, 4), is_cut=True)
    assert [message.share for message in messages] == [WHOLE, WHOLE]


class Said:
    """Links that remember what was sent through them."""

    def __init__(self):
        self.sent = []

    def send(self, tensor, stage, async_op=False):
        self.sent.append((tensor, stage))


def test_without_links_nothing_is_said():
    links = LinksOfThread()
    assert links.send(torch.zeros(1), 1, async_op=True) is None
    assert links.init_process_groups("a grid") is None


def test_each_thread_talks_through_its_own_links():
    """One builds an engine, and is silent, while the other trains."""
    links, trained = LinksOfThread(), Said()
    links.use(trained)

    def build():
        links.use(None)
        links.send("start-up message", 1)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(build).result(10)
    links.send("activation", 1)
    assert trained.sent == [("activation", 1)]


def test_an_engine_that_is_given_up_talks_no_more():
    links, trained = LinksOfThread(), Said()
    links.use(trained)
    links.use(None)
    links.send("activation", 1)
    assert trained.sent == []


def claims(rank, store):
    """What arrives at one of three ranks, and when its emulated device is free again."""
    seat = RankMap.of(GROWS).seats[rank]
    world = World(store, 1, rank, 3, ((0, 1, 2),), Activity(), device=CPU)
    links = StageLinks(seat, world, RealPace())
    activation, gradient = torch.zeros(2, 3), torch.zeros(3, 2).t()
    if rank == 0:
        links.send(torch.arange(6.0).view(3, 2).t(), 1)  # strided, as a transposed output is
        links.recv(gradient := torch.zeros(2, 3), 1)
    else:
        links.recv(activation, 0)
        links.send(activation * (10 if rank == 1 else 99), 0)
    pace = EmulatedPace(
        RankTimes(
            forward_s=0.01 * (rank + 1),
            backward_s=0.0,
            to_previous_s=0.002,
            to_next_s=0.002,
            sync_s=0.0,
            optimizer_s=0.0,
            broadcast_s=0.0,
        )
    )
    pace.begin()
    pace.forward()
    free = pace.due()
    paced = StageLinks(seat, world, pace)
    if rank == 0:
        paced.send(torch.zeros(1), 1)
    else:
        paced.recv(torch.zeros(1), 0)
    world.leave(wait=True)
    return activation.tolist(), gradient.tolist(), free, pace.due()


@pytest.mark.slow
def test_activations_reach_both_ranks_of_a_wider_stage_and_one_of_them_answers():
    found = run_ranks("tests.unit.worker.world.test_stage_links:claims", 3)
    sent = torch.arange(6.0).view(3, 2).t()
    assert [activation for activation, *_ in found[1:]] == [sent.tolist()] * 2
    assert found[0][1] == (10 * sent).tolist()
    free, passed = zip(*((free, due) for *_, free, due in found), strict=True)
    assert passed[0] == pytest.approx(max(free) + 0.002)
    assert passed[1] == pytest.approx(max(free[0], free[1]) + 0.002)
    assert passed[2] == pytest.approx(max(free[0], free[2]) + 0.002)


APART = [(1, 2), (2, 1), (2, 2)]


def apart(rank, store, device=CPU, form_wire=GlooWire.form):
    """What arrives, and how many values each rank sends, of tensors between two nodes."""
    found = {}
    for epoch, (t, u) in enumerate(APART, 1):
        if rank >= t + u:
            continue
        one = plan(f"{t}x1+{u}x1")
        here, there = one.placement
        one = replace(one, placement=(here, replace(there, node="b")))
        seat, sent = RankMap.of(one).seats[rank], []
        world = World(
            store,
            epoch,
            rank,
            t + u,
            rank_sets(MODEL, one),
            Activity(),
            device=device,
            form_wire=form_wire,
        )
        links = StageLinks(seat, world, RealPace())
        exchange = world.everyone.exchange

        def counted(sends, receives, exchange=exchange, sent=sent):
            sent += [tensor.numel() for _, tensor in sends]
            exchange(sends, receives)

        world.everyone.exchange = counted
        came = []
        for values in (torch.arange(12.0), torch.arange(7.0), torch.arange(8).bfloat16()):
            whole = values.view(2, -1).t() if len(values) == 12 else values
            if seat.stage == 0:
                links.send(device.put(whole), 1)
            else:
                links.recv(tensor := device.put(torch.zeros_like(whole).contiguous()), 0)
                came.append(world.host(tensor).tolist() == whole.tolist())
        found[f"{t}{u}"] = {"came": came, "sent": sent}
        world.control.all_reduce_(torch.zeros(1))  # nobody leaves before all have read
        world.leave(wait=True)
    return found


def apart_recorded(rank, store):
    """The same on a device, and what the rank issued on its wires."""
    from tests.simulated_device import recorded_wire
    from tests.simulated_device.device import SimulatedDevice

    return {
        **apart(rank, store, SimulatedDevice(), recorded_wire.RecordedWire.form),
        "log": recorded_wire.LOG,
    }


@pytest.mark.slow
@pytest.mark.parametrize("claims", ["apart", "apart_recorded"])
def test_between_nodes_a_tensor_arrives_whole_and_one_that_cannot_be_cut_as_well(claims):
    found = run_ranks(f"tests.unit.worker.world.test_stage_links:{claims}", 4)
    for t, u in APART:
        of = [rank[f"{t}{u}"] for rank in found[: t + u]]
        assert [one["came"] for one in of[t:]] == [[True] * 3] * u
        most = max(t, u)
        sent = [[12 // most] * (most // t) for _ in range(t)]
        assert [one["sent"][: most // t] for one in of[:t]] == sent
    logs = [rank["log"] for rank in found if "log" in rank]
    assert len(logs) in (0, 4)
    assert (stuck(logs), disorder(logs)) == ([], [])
