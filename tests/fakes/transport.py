"""`Transport` in memory: one thread per rank, one board that all share.

It refuses what gloo refuses: a peer that closed, a peer that stays silent.  The receiver of a
message takes it when it waits for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch

from migration.errors import TransferFailed
from migration.transport import Messages, Pending, ReduceOp, post_all

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

    def transports(self, *, in_rounds: bool = False) -> list[MemoryTransport]:
        """One transport per rank."""
        return [MemoryTransport(self, rank, in_rounds=in_rounds) for rank in range(self.size)]


class MemoryTransport:
    """One rank's end of a board."""

    def __init__(self, board: Board, rank: int, *, in_rounds: bool = False) -> None:
        self.in_rounds = in_rounds
        self.rank = rank
        self.size = board.size
        self.device = torch.device("cpu")
        self.bytes_sent = 0
        self.bytes_received = 0
        self._board = board
        self._turn, self._is_round = 0, False
        self._posted: dict[tuple[int, int], int] = {}
        self._expected: dict[tuple[int, int], int] = {}

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Transport.host`."""
        return tensor

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Transport.fill`."""
        target.copy_(source)

    def post_send(self, peer: int, tensor: torch.Tensor) -> Pending:
        """See `Transport.post_send`; what has rounds refuses a message outside of one."""
        self._check_round()
        board, pair = self._board, (self.rank, peer)
        with board.changed:
            self._check_open()
            board.mail.setdefault(pair, deque()).append(tensor)
            turn = self._posted[pair] = self._posted.get(pair, 0) + 1
            board.changed.notify_all()
        self.bytes_sent += tensor.nbytes
        return _Pending(
            self, lambda: self._await(lambda: board.taken.get(pair, 0) >= turn, lambda: {peer})
        )

    def post_receive(self, peer: int, tensor: torch.Tensor) -> Pending:
        """See `Transport.post_receive`; likewise."""
        self._check_round()
        self._check_open()
        pair = (peer, self.rank)
        turn = self._expected[pair] = self._expected.get(pair, 0) + 1
        self.bytes_received += tensor.nbytes
        return _Pending(self, lambda: self._receive(pair, turn, tensor))

    def exchange(self, sends: Messages, receives: Messages) -> Pending:
        """See `Transport.exchange`."""
        self._is_round = True
        try:
            return post_all(self, sends, receives)
        finally:
            self._is_round = False

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

    def _receive(self, pair: tuple[int, int], turn: int, tensor: torch.Tensor) -> None:
        board = self._board
        self._await(
            lambda: bool(board.mail.get(pair)) and board.taken.get(pair, 0) == turn - 1,
            lambda: {pair[0]},
        )
        message = board.mail[pair].popleft()
        assert message.nbytes == tensor.nbytes, "ranks that agree on a plan agree on every size"
        tensor.view(-1).view(torch.uint8).copy_(message.view(-1).view(torch.uint8))
        board.taken[pair] = turn
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

    def _check_round(self) -> None:
        if self.in_rounds and not self._is_round:
            raise TransferFailed("a message is outside a round; use `exchange`")

    def _check_open(self) -> None:
        if self.rank in self._board.closed:
            raise TransferFailed(f"rank {self.rank} has closed this transport; form a new one")


class _Pending:
    """A send or receive of the board."""

    def __init__(self, transport: MemoryTransport, finish: Callable[[], None]) -> None:
        self._transport, self._finish = transport, finish

    def wait(self) -> None:
        """See `Pending.wait`."""
        with self._transport._board.changed:
            self._transport._check_open()
            self._finish()
