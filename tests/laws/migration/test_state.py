"""The law that matters: what is moved is, bit for bit, the old state in the new layout."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings

from migration.digest import agree, piece_digests
from migration.exchange import exchange_state
from planner.model.tensors import model_tensors
from planner.plans.pieces import contains
from tests.builders import piece_shapes
from tests.fakes.transport import Board
from tests.laws.migration.changes import Change, any_changes, cut, whole_state


def within(model, piece, parts, box):
    """Views of a box in the tensors of a piece that contains it."""
    tensor = next(tensor for tensor in model_tensors(model) if tensor.name == piece.tensor)
    if tensor.experts:
        first = piece.expert_start
        parts = tuple(p[box.expert_start - first : box.expert_stop - first] for p in parts)
    rows = box.stop - box.start
    return tuple(p.narrow(tensor.row_dim, box.start - piece.start, rows) for p in parts)


def run(change: Change, state):
    """Move the state in memory; per rank: its new state, digest before and after."""
    held, needed, transfer = change.held, change.needed, change.transfer()
    transports = Board(len(change.members), timeout_s=60).transports()
    shapes = piece_shapes(change.model, change.cuts)

    def act(transport):
        mine = held[transport.rank]
        new = {
            piece: cut(state, piece, change.model)
            if piece in set(mine)
            else tuple(torch.full(shapes[piece], torch.nan) for _ in range(3))
            for piece in needed[transport.rank]
        }

        def read(part):
            assert any(contains(piece, part.box) for piece in mine), "it reads only what it holds"
            return cut(state, part.box, change.model)

        def write(part):
            piece = next(piece for piece in new if contains(piece, part.box))
            assert piece not in set(mine), "what is held is not written to"
            return within(change.model, piece, new[piece], part.box)

        everything = tuple(shapes)
        before = agree(
            transport, everything, piece_digests(mine, lambda p: cut(state, p, change.model))
        )
        exchange_state(transfer, transport, read, write, epoch=2, step=7)
        after = agree(transport, everything, piece_digests(new, new.__getitem__))
        return new, before, after

    with ThreadPoolExecutor(len(transports)) as pool:
        return list(pool.map(act, transports))


@pytest.mark.slow
@given(any_changes())
@settings(max_examples=25)
def test_the_new_state_is_the_old_state_bit_for_bit(change: Change):
    state = whole_state(change.model)
    results = run(change, state)
    for rank, (new, _, _) in enumerate(results):
        assert set(new) == set(change.needed[rank])
        for piece, parts in new.items():
            for part, expected in zip(parts, cut(state, piece, change.model), strict=True):
                assert torch.equal(part, expected)
    assert len({digest for _, before, after in results for digest in (before, after)}) == 1
