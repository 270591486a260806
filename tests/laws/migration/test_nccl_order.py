"""Law of orders: NCCL would run all that a change of plan issues, whatever the plans.

First operations of the new world, then the rounds of the move, written down as the ranks would
issue them and played again with one stream a communicator.
"""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from migration.transfer import MAX_OPERATIONS
from migration.transport import AllOf
from planner.plans.ranks import RankMap
from tests.laws.migration.changes import Change, any_changes
from tests.simulated_device.law import disorder, stuck
from worker.control.activity import Activity
from worker.device.device import CPU
from worker.world.stage_links import link_rounds
from worker.world.wire import OverHost
from worker.world.world import World, rank_sets

EXAMPLES = 200
Log = list[list[object]]


class Writer:
    """What one rank issues, and awaits at once."""

    def __init__(self) -> None:
        self.log: Log = []
        self._numbers, self._rounds = count(), count()

    def collective(self, comm: str, ranks: tuple[int, ...], rank: int) -> None:
        self._operate([("all_reduce", -1)], comm, ranks, rank, -1)

    def round(self, comm, ranks, rank, sends, receives) -> None:
        operations = [("send", peer) for peer in sends] + [("recv", peer) for peer in receives]
        assert len(operations) <= MAX_OPERATIONS
        places = [(what, ranks.index(peer)) for what, peer in operations]
        self._operate(places, comm, ranks, rank, next(self._rounds))

    def ungrouped(self, comm, ranks, rank, sends, receives) -> None:
        """The mutant: each message by itself, the sends first."""
        for what, peers in (("send", sends), ("recv", receives)):
            for peer in peers:
                self._operate([(what, ranks.index(peer))], comm, ranks, rank, -1, waits=False)

    def _operate(self, operations, comm, ranks, rank, group, waits=True) -> None:
        me, size = ranks.index(rank), len(ranks)
        rows = [
            ["issue", next(self._numbers), "t", comm, what, peer, me, size, group]
            for what, peer in operations
        ]
        self.log += [*rows, *(["wait", *row[1:]] for row in rows if waits)]


class WrittenWire(OverHost):
    """A wire on which nothing travels, and of which a rank writes down what it issues."""

    def __init__(self, writer: Writer, name: str, place: int, size: int) -> None:
        self.control, self._writer = self, writer
        self._comm, self._place, self._all = name, place, tuple(range(size))

    def all_reduce(self, tensor, op):
        self._writer.collective(self._comm, self._all, self._place)
        return AllOf([])

    def exchange(self, sends, receives):
        peers = [peer for peer, _ in sends], [peer for peer, _ in receives]
        self._writer.round(self._comm, self._all, self._place, *peers)
        return AllOf([])

    def send(self, tensor, target):
        self._writer.ungrouped(self._comm, self._all, self._place, [target], [])
        return AllOf([])

    def recv(self, tensor, source):
        self._writer.ungrouped(self._comm, self._all, self._place, [], [source])
        return AllOf([])

    def abort(self):
        """Nobody waits."""

    def release(self):
        """It holds nothing."""


def first_operations(change: Change, *, reverses: int | None = None) -> dict[int, Writer]:
    """{rank of the new plan: its try step}; the mutant's rank takes its groups the other way."""
    ranks, sets = RankMap.of(change.new), rank_sets(change.model, change.new)
    found = {}
    for rank in range(change.new.gpus):
        writer = Writer()

        def form(store, name, place, size, writer=writer):
            return WrittenWire(writer, name, place, size)

        world = World(None, 1, rank, change.new.gpus, sets, Activity(), device=CPU, form_wire=form)
        if rank == reverses:
            world.groups = dict(reversed(world.groups.items()))
        writer.log.clear()  # of the forming, where nothing is issued on a wire of NCCL
        world.try_links(link_rounds(ranks, rank))
        found[rank] = writer
    return found


def whole(change: Change, call: str = "round") -> list[Log]:
    """The logs of all transport ranks: try step, then the move."""
    tried, members = first_operations(change), change.members
    everyone, logs, transfer = tuple(range(len(members))), [], change.transfer()
    for me, member in enumerate(members):
        writer = tried[member.rank] if member.rank is not None else Writer()
        for messages in transfer.rounds(me):
            sends = [message.receiver for message in messages if message.sender == me]
            receives = [message.sender for message in messages if message.receiver == me]
            getattr(writer, call)("transport", everyone, me, sends, receives)
        logs.append(writer.log)
    return logs


@settings(max_examples=EXAMPLES)
@given(any_changes())
def test_nccl_would_run_the_first_operations_and_the_move_of_any_change(change: Change):
    logs = whole(change)
    assert stuck(logs) == []
    assert disorder(logs) == []


@given(any_changes())
def test_a_round_has_both_ends_of_a_message_and_a_message_comes_before_it_is_handed_on(change):
    placed: dict[object, int] = {}
    for rank in range(len(change.members)):
        transfer = change.transfer()  # each rank works it out for itself
        assert [m for messages in transfer.rounds(rank) for m in messages] == [
            *transfer.messages(rank)
        ]
        for messages in transfer.rounds(rank):
            for message in messages:
                number = transfer._round_of[message.turn]
                assert placed.setdefault(message.turn, number) == number
                assert message.after is None or transfer._round_of[message.after] < number


def exchanges(change: Change) -> bool:
    """Whether two ranks send to each other in one round."""
    transfer = change.transfer()
    rows = [m for rank in range(len(change.members)) for m in transfer.messages(rank)]
    found = {(m.sender, m.receiver, transfer._round_of[m.turn]) for m in rows}
    return any((receiver, sender, number) in found for sender, receiver, number in found)


@given(st.data())
def test_messages_outside_a_round_are_found_out(data):
    change = data.draw(any_changes().filter(exchanges))
    assert stuck(whole(change, "ungrouped"))


@given(st.data())
def test_groups_taken_in_another_order_are_found_out(data):
    def has_two(change: Change) -> bool:
        return sum(0 in ranks for ranks in rank_sets(change.model, change.new)) > 1

    change = data.draw(any_changes().filter(has_two))
    logs = [writer.log for writer in first_operations(change, reverses=0).values()]
    assert stuck(logs) or disorder(logs)
