"""`Transport` in memory: one thread per rank, one board that all share.

It refuses what gloo refuses: a message of another size, a peer that closed, a peer that stays
silent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import torch

from migration.errors import TransferFailed
from migration.transport import ReduceOp

_REDUCE = {"sum": torch.sum, "min": torch.amin, "max": torch.amax}


class Board:
    """What the ranks of one group share.  All fields are guarded by `changed`."""

    def __init__(self, size: int, timeout_s: float = 5.0) -> None:
        self.size = size
        self.timeout_s = timeout_s
        self.changed = threading.Condition()
        self.closed: set[int] = set()
        self.mail: dict[tuple[int, int], deque[torch.Tensor]] = {}  # (sender, receiver)
        self.taken: dict[tuple[int, int], int] = {}  # messages that the receiver has copied
        self.reductions: dict[int, dict[int, torch.Tensor]] = {}  # turn -> rank -> contribution

    def transports(self) -> list[MemoryTransport]:
        """One transport per rank."""
        return [MemoryTransport(self, rank) for rank in range(self.size)]


class MemoryTransport:
    """One rank's end of a board."""

    def __init__(self, board: Board, rank: int) -> None:
        self.rank = rank
        self.size = board.size
        self.device = torch.device("cpu")
        self.bytes_sent = 0
        self.bytes_received = 0
        self._board = board
        self._turn = 0
        self._posted: dict[int, int] = {}

    def exchange(
        self,
        sends: Sequence[tuple[int, torch.Tensor]],
        receives: Sequence[tuple[int, torch.Tensor]],
    ) -> None:
        """See `Transport.exchange`."""
        board = self._board
        with board.changed:
            self._check_open()
            for peer, body in sends:
                board.mail.setdefault((self.rank, peer), deque()).append(body)
                self._posted[peer] = self._posted.get(peer, 0) + 1
            board.changed.notify_all()
            for peer, body in receives:
                self._receive(peer, body)
            for peer in {peer for peer, _ in sends}:
                self._await(
                    lambda peer=peer: board.taken.get((self.rank, peer), 0) >= self._posted[peer],
                    lambda peer=peer: {peer},
                )
        self.bytes_sent += sum(body.numel() for _, body in sends)
        self.bytes_received += sum(body.numel() for _, body in receives)

    def all_reduce_(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """See `Transport.all_reduce_`."""
        board = self._board
        with board.changed:
            self._check_open()
            turn, self._turn = self._turn, self._turn + 1
            rows = board.reductions.setdefault(turn, {})
            rows[self.rank] = tensor.clone()
            board.changed.notify_all()
            self._await(lambda: len(rows) == self.size, lambda: set(range(self.size)) - set(rows))
        tensor.copy_(_REDUCE[op](torch.stack([rows[rank] for rank in range(self.size)]), dim=0))

    def close(self, *, wait: bool = False) -> None:
        """See `Transport.close`."""
        with self._board.changed:
            self._board.closed.add(self.rank)
            self._board.changed.notify_all()

    def _receive(self, peer: int, body: torch.Tensor) -> None:
        board, pair = self._board, (peer, self.rank)
        self._await(lambda: bool(board.mail.get(pair)), lambda: {peer})
        message = board.mail[pair].popleft()
        if message.numel() != body.numel():
            raise TransferFailed(
                f"rank {self.rank} expected {body.numel()} bytes from rank {peer}, "
                f"which sends {message.numel()}"
            )
        body.copy_(message)
        board.taken[pair] = board.taken.get(pair, 0) + 1
        board.changed.notify_all()

    def _await(self, happened, needed) -> None:
        """Wait until it happened, or a rank that it takes has closed, or time is up."""
        board = self._board
        board.changed.wait_for(lambda: happened() or needed() & board.closed, board.timeout_s)
        if not happened():
            gone = sorted(needed() & board.closed)
            raise TransferFailed(
                f"rank {self.rank} lost a peer: {f'rank {gone[0]} closed' if gone else 'timed out'}"
            )

    def _check_open(self) -> None:
        if self.rank in self._board.closed:
            raise TransferFailed(f"rank {self.rank} has closed this transport; form a new one")
