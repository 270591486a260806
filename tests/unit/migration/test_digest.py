"""Digests find any two holders that differ and name the whole state alike on every rank."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from migration.digest import agree, bounds, piece_digests
from migration.errors import MigrationError, StateLost, TransferFailed
from planner.plans.pieces import Piece
from tests.fakes.transport import Board

A, B = Piece("1.q", 0, 2), Piece("1.q", 2, 4)
STATE = {A: (torch.arange(4.0), torch.ones(2)), B: (torch.zeros(4), torch.ones(2))}


def together(*rows):
    """`agree` on as many ranks as there are rows of {piece: parts}."""
    transports = Board(len(rows)).transports()

    def act(rank):
        mine = piece_digests(rows[rank], rows[rank].__getitem__)
        try:
            return agree(transports[rank], (A, B), mine)
        except MigrationError as error:
            return error

    with ThreadPoolExecutor(len(rows)) as pool:
        return list(pool.map(act, range(len(rows))))


def test_the_digest_does_not_depend_on_who_holds_what():
    whole = together(STATE)
    spread = together({A: STATE[A]}, {}, {B: STATE[B]}, STATE)
    assert {*whole, *spread} == {whole[0]}
    assert len(whole[0]) == 16


@pytest.mark.parametrize("part", [0, 1])
def test_one_flipped_bit_of_one_holder_is_found_by_all(part):
    parts = [tensor.clone() for tensor in STATE[B]]
    parts[part].view(torch.int32)[0] ^= 1
    for error in together(STATE, {}, {B: tuple(parts)}):
        assert isinstance(error, TransferFailed)
        assert "rows [2, 4) of tensor q in layer 1" in str(error)


def test_one_flipped_bit_of_every_holder_changes_the_digest():
    parts = tuple(tensor.clone() for tensor in STATE[B])
    parts[0].view(torch.int32)[3] ^= 1
    assert together(STATE) != together({A: STATE[A], B: parts})


def test_a_piece_without_a_holder_is_lost_state():
    errors = together({A: STATE[A]}, {})
    assert all(isinstance(error, StateLost) for error in errors)


def test_digests_are_of_values_not_of_strides():
    tensor = torch.arange(6.0).view(2, 3)
    strided = tensor.t().contiguous().t()
    assert piece_digests([A], lambda _: (tensor,)) == piece_digests([A], lambda _: (strided,))


def test_bounds_keep_63_bits():
    (transport,) = Board(1).transports()
    high = (1 << 63) - 1
    assert bounds(transport, [high, 0], [-1, high]) == ([high, 0], [-1, high])
