"""What a move has under way, counted by the storages of its messages, is never more than stated."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from migration.exchange import exchange_state
from planner.plans.pieces import contains
from tests.builders import piece_shapes
from tests.fakes.transport import Board
from tests.laws.migration.changes import Change, any_changes, cut, whole_state
from tests.laws.migration.test_state import within


class Counting:
    """A transport that knows which bytes are under way, and the most that ever were."""

    def __init__(self, inner):
        self.inner, self.now, self.most = inner, 0, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def post_send(self, peer, tensor):
        return self._count(self.inner.post_send(peer, tensor), tensor)

    def post_receive(self, peer, tensor):
        return self._count(self.inner.post_receive(peer, tensor), tensor)

    def _count(self, pending, tensor):
        self.now += tensor.untyped_storage().nbytes()
        self.most = max(self.most, self.now)
        return _Counted(self, pending, tensor)


class _Counted:
    def __init__(self, transport, pending, tensor):
        self.transport, self.pending, self.tensor = transport, pending, tensor

    def wait(self):
        self.pending.wait()
        self.transport.now -= self.tensor.untyped_storage().nbytes()


@given(any_changes(), st.sampled_from((64, 256, 4096)))
@settings(max_examples=15, deadline=None)
def test_messages_under_way_take_no_more_memory_than_is_stated(change: Change, message_bytes):
    state, shapes = whole_state(change.model), piece_shapes(change.model, change.cuts)
    transfer = change.transfer(message_bytes)

    def act(transport):
        counting = Counting(transport)
        new = {
            piece: tuple(torch.empty(shapes[piece]) for _ in range(3))
            for piece in change.needed[transport.rank]
        }

        def write(part):
            piece = next(piece for piece in new if contains(piece, part.box))
            return within(change.model, piece, new[piece], part.box)

        def read(part):
            return cut(state, part.box, change.model)

        exchange_state(transfer, counting, read, write, epoch=2, step=7)
        return counting

    transports = Board(len(change.members), timeout_s=60).transports()
    with ThreadPoolExecutor(len(transports)) as pool:
        found = list(pool.map(act, transports))
    assert [one.now for one in found] == [0] * len(found)
    for one in found:
        assert one.most <= transfer.buffer_bytes(one.rank)
        assert one.most > 0 or not transfer.messages(one.rank)
