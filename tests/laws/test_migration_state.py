"""The law that matters: the difference applied to the old state is the new state bit for bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings

from migration.digest import agree, piece_digests
from migration.execute import exchange_state
from migration.schedule import arrange
from migration.tuples import bytes_missing, difference
from tests.fakes.transport import Board
from tests.laws.changes import Change, changes, cut, whole_state

CHUNK_BYTES, OPERATIONS = 256, 4  # small, so that pieces are cut and rounds are many


def run(change: Change, state):
    """Move the state in memory; per rank: new state, what arrived, digest before and after."""
    held, needed = change.held, change.needed
    moves = difference(held, needed, change.piece_bytes, change.node_of, CHUNK_BYTES)
    schedule = arrange(moves, CHUNK_BYTES, OPERATIONS)
    transports = Board(len(change.members)).transports()

    def act(transport):
        def read(piece):
            assert piece in set(held[transport.rank]), "a rank reads only what it holds"
            return cut(state, piece)

        everything = tuple(change.piece_bytes)
        before = agree(transport, everything, piece_digests(held[transport.rank], read))
        received = exchange_state(schedule, transport, read, change.shapes, epoch=2, step=7)
        new = {
            piece: received[piece] if piece in received else read(piece)
            for piece in needed[transport.rank]
        }
        after = agree(transport, everything, piece_digests(new, new.__getitem__))
        return new, received, before, after

    with ThreadPoolExecutor(len(transports)) as pool:
        return list(pool.map(act, transports))


@pytest.mark.slow
@given(changes())
@settings(max_examples=25)
def test_the_new_state_is_the_old_state_bit_for_bit(change: Change):
    state = whole_state()
    results = run(change, state)
    for rank, (new, _, _, _) in enumerate(results):
        assert set(new) == set(change.needed[rank])
        for piece, parts in new.items():
            for part, expected in zip(parts, cut(state, piece), strict=True):
                assert part.shape == expected.shape == change.shapes[piece]
                assert torch.equal(part, expected)
    digests = {digest for _, _, before, after in results for digest in (before, after)}
    assert len(digests) == 1


@pytest.mark.slow
@given(changes())
@settings(max_examples=10)
def test_what_arrives_is_what_was_missing(change: Change):
    missing = bytes_missing(change.held, change.needed, change.piece_bytes)
    for rank, (_, received, _, _) in enumerate(run(change, whole_state())):
        assert sum(change.piece_bytes[piece] for piece in received) == missing[rank]
