"""One rank's change of epoch, as a transaction: transfer, verify, vote, and only then flip.

Until the outcome is `commit` nothing of the old epoch is touched, so it can go on at the same step.
 Each part ends with a lap by the monotonic clock; the parts together are the stall.
Source: Heddle, section 5.6; design, "Transactional" and "Epochs".
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from migration.digest import agree, bounds, piece_digests
from migration.errors import TransferFailed
from migration.execute import exchange_state
from migration.transport import Transport
from planner.model.shape import ModelShape
from planner.plans.pieces import Piece, piece_shapes
from worker.engine.seam import Parts
from worker.rank.effects import Services
from worker.rank.held_state import HeldState, all_pieces
from worker.rank.move import Move
from worker.rank.vote import Outcome, Vote
from worker.world.world import World

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

VOTE_POLL_S = 0.002


class Undecided(Exception):
    """The store was lost after this rank had voted.

    Old and new layout are both valid, somebody else must decide.
    """


@dataclass(slots=True)
class Switch:
    """The transaction of one rank at one step.

    Attributes:
        move: what to do.
        step: completed steps of the state.
        laps: {part: when it ended}.
        digest: of the whole state, once verified.
        received: the pieces that arrived, once verified.
    """

    model: ModelShape
    move: Move
    store: Store
    transport: Transport
    services: Services
    step: int
    laps: dict[str, float] = field(default_factory=dict)
    digest: str | None = None
    received: dict[Piece, Parts] = field(default_factory=dict)

    def run(self, held: HeldState, is_aborted: Callable[[], bool]) -> Outcome:
        """Transfer, verify and vote.

        Args:
            held: what this rank holds now; it is only read.
            is_aborted: asked while waiting for the others.

        Returns:
            The outcome; on `commit` the received pieces have been added to `held`.

        Raises:
            Undecided: see there.
            Exception: before the vote; the old epoch stands untouched.
        """
        vote = Vote(self.store, self.move.directive.epoch, len(self.move.directive.members))
        try:
            self._transfer(held)
        except Exception:  # without this rank's vote there is no commit, heard of or not
            self.transport.close()
            with contextlib.suppress(RuntimeError):
                vote.abort()
            raise
        try:
            self.services.on_phase("vote")
            vote.cast()
            outcome = self._await(vote, is_aborted)
        except RuntimeError as error:  # torch raises its store errors as RuntimeError
            held.add_pieces(self.received)
            raise Undecided(str(error)) from None
        if outcome == "commit":
            held.add_pieces(self.received)
        self.lap("vote")
        return outcome

    def _transfer(self, held: HeldState) -> None:
        epoch = self.move.directive.epoch
        self.services.on_phase("drain")
        low, high = bounds(self.transport, [self.step], [self.step])
        if low != high:
            raise TransferFailed(
                f"ranks stand at steps {low[0]} to {high[0]}; they must stop at one boundary"
            )
        self.lap("drain")
        self.services.on_phase("transfer")
        if self.move.moves_state:
            shapes = piece_shapes(self.model, self.move.tp_degrees)
            self.received = exchange_state(
                self.move.schedule, self.transport, held.read, shapes, epoch=epoch, step=self.step
            )
        self.lap("transfer")
        self.services.on_phase("verify")
        if self.move.moves_state:
            self.digest = agree(
                self.transport, all_pieces(self.model, self.move.tp_degrees), self._digests(held)
            )
        self.lap("verify")

    def _digests(self, held: HeldState) -> dict[Piece, int]:
        """Of everything that this rank holds before and after.

        So every copy is compared with every other.
        """
        mine = piece_digests(self.move.held[self.move.transport_rank], held.read)
        mine.update(piece_digests(self.received, self.received.__getitem__))
        return mine

    def _await(self, vote: Vote, is_aborted: Callable[[], bool]) -> Outcome:
        deadline = time.monotonic() + self.services.timeout_s
        while True:
            outcome = vote.outcome()
            if outcome is not None:
                return outcome
            if is_aborted() or time.monotonic() > deadline:
                vote.abort()
            time.sleep(VOTE_POLL_S)

    def verify_after(self, world: World, held: HeldState) -> str:
        """The digest of the state as the new engines hold it; a collective of the new world.

        Raises:
            TransferFailed: it is not the digest from before the change.
        """
        mine = piece_digests(self.move.pieces_after(), held.read)
        digest = agree(world, all_pieces(self.model, self.move.tp_degrees), mine)  # type: ignore[arg-type] # a World reduces too
        if self.digest is not None and digest != self.digest:
            raise TransferFailed(
                f"the state has digest {digest} after the change, {self.digest} before it"
            )
        return digest

    def lap(self, name: str) -> None:
        """End a part of the stall."""
        self.laps[name] = time.monotonic()
