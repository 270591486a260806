"""One rank's change of epoch, as a transaction: move, verify, vote, and only then flip.

Whatever may fail was done before: groups and engine of the new plan stand.  Until the outcome is
`commit` nothing of the old epoch is touched, so it can go on at the same step.
Each part ends with a lap by the monotonic clock; the parts together are the stall.
Source: Heddle, section 5.6.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from migration.digest import Reducer, agree, bounds, piece_digests
from migration.errors import TransferFailed
from migration.exchange import exchange_state
from migration.slices import Slice
from planner.model.shape import ModelShape
from planner.plans.pieces import Piece
from planner.plans.ranks import RankMap
from worker.engine.seam import Parts, Progress
from worker.rank.preparation import Prepared
from worker.rank.services import Services
from worker.rank.vote import Outcome, Vote
from worker.state.held_state import HeldState, all_pieces, find_tensor
from worker.state.shards import TargetShards
from worker.world.stage_links import link_rounds

VOTE_POLL_S = 0.001
NEVER = 1 << 62  # of a minimum, by a rank that has nothing to say


class Undecided(Exception):
    """The store was lost after this rank had voted.

    Old and new layout are both valid, somebody else must decide.
    """


@dataclass(slots=True, kw_only=True)
class Switch:
    """The transaction of one rank at one step.

    Attributes:
        prepared: what to do, and with what.
        progress: of the state that this rank holds; None: it holds nothing.
        laps: {part: when it ended}.
        agreed: step, updates and loss scale that all holders stand at, once they have met.
        bytes_spread: of weights that this rank got from their owners, with ZeRO.
        digest: of the whole state, where all of it is verified.
    """

    model: ModelShape
    prepared: Prepared
    services: Services
    progress: Progress | None
    laps: dict[str, float] = field(default_factory=dict)
    agreed: Progress = field(default_factory=Progress)
    bytes_spread: int = 0
    digest: str | None = None

    def run(
        self, held: HeldState, is_aborted: Callable[[], bool], before_vote: Callable[[], None]
    ) -> Outcome:
        """Move, verify and vote.

        Args:
            held: what this rank holds now; it is only read.
            is_aborted: asked while waiting for the others.
            before_vote: called when the move is over, and nothing may interrupt it any more.

        Returns:
            The outcome; on `commit` the new shards hold the state.

        Raises:
            Undecided: see there.
            Exception: before the vote; the old epoch stands untouched.
        """
        directive = self.prepared.move.directive
        vote = Vote(self.prepared.store, directive.epoch, len(directive.members))
        try:
            self._drain()
            self._try()
            self._transfer(held)
            self._verify(held)
            before_vote()
        except Exception:  # without this rank's vote there is no commit, heard of or not
            self.prepared.transport.close()
            with contextlib.suppress(RuntimeError):
                vote.abort()
            raise
        self._begin("vote")
        try:
            vote.cast()
            outcome = self._await(vote, is_aborted)
        except RuntimeError as error:  # torch raises its store errors as RuntimeError
            raise Undecided(str(error)) from None
        self.lap("vote")
        return outcome

    def _drain(self) -> None:
        """All holders must stand at one boundary; who holds nothing learns where."""
        self._begin("drain")
        mine, resume = self.progress or self.prepared.start, self.prepared.move.directive.resume
        known = mine.agreed if mine else None
        low, high = bounds(self.prepared.transport, known or [NEVER] * 4, known or [-1] * 4)
        self.agreed = Progress.of_start(self.prepared.move.directive.training)
        if high[0] >= 0:
            if low != high:
                raise TransferFailed(
                    f"ranks stand at steps {low[0]} to {high[0]}, updates {low[1]} to {high[1]}, "
                    f"loss scales {low[2]} to {high[2]}; they must stop at one boundary"
                )
            self.agreed = Progress(
                step=high[0], updates=high[1], loss_scale=high[2], good_steps=high[3]
            )
        if resume is not None and self.agreed.step != resume.step:
            raise TransferFailed(
                f"the recovery asks for step {resume.step}, the state is at {self.agreed.step}"
            )

    def _try(self) -> None:
        """First operations of the new world, in one order, while all stand at the boundary."""
        successor, move = self.prepared.successor, self.prepared.move
        if successor is not None and successor.world.connects_late:
            self.services.on_phase("try")
            ranks = RankMap.of(move.plan)
            successor.world.try_links(link_rounds(ranks, successor.world.rank))
        self.lap("drain")

    def _transfer(self, held: HeldState) -> None:
        self._begin("transfer")
        move, successor = self.prepared.move, self.prepared.successor
        if move.moves_state:
            exchange_state(
                move.transfer,
                self.prepared.transport,
                held.read_slice,
                self._write_slice,
                epoch=move.directive.epoch,
                step=self.agreed.step,
            )
            if successor is not None:
                self._copy_kept(held, successor.target)
                successor.target.fill(self.model)
        self.lap("transfer")

    def _write_slice(self, wanted: Slice) -> Parts:
        """Views of where a slice goes."""
        successor = self.prepared.successor
        assert successor is not None  # who leaves receives nothing
        tensor = find_tensor(self.model, wanted.piece.tensor)
        return successor.target.view(tensor, wanted.box, wanted.parts)

    def _copy_kept(self, held: HeldState, target: TargetShards) -> None:
        """Copy what stays on this rank, of tensors that are cut otherwise now."""
        for kept in self.prepared.move.kept:
            if kept.piece.tensor not in target.adopted:
                targets = self._write_slice(kept)
                for view, part in zip(targets, held.read_slice(kept), strict=True):
                    view.copy_(part)

    def _verify(self, held: HeldState) -> None:
        self._begin("verify")
        move = self.prepared.move
        if move.moves_state and move.directive.training.verify == "Full":
            mine = piece_digests(
                move.held[move.transport_rank], held.read, self.services.device.host
            )
            mine.update(self._new_digests())
            self.digest = agree(self.prepared.transport, all_pieces(self.model, move.cuts), mine)
        self.lap("verify")

    def _new_digests(self) -> dict[Piece, int]:
        """Of everything that this rank holds after the change."""
        successor = self.prepared.successor
        if successor is None:
            return {}
        return piece_digests(
            self.prepared.move.pieces_after(),
            lambda piece: successor.target.view(find_tensor(self.model, piece.tensor), piece),
            self.services.device.host,
        )

    def _await(self, vote: Vote, is_aborted: Callable[[], bool]) -> Outcome:
        """The outcome; whoever waits for a lost peer is told by the operator."""
        with self.services.activity.wait():
            while (outcome := vote.outcome()) is None:
                if is_aborted():
                    vote.abort()
                time.sleep(VOTE_POLL_S)
        return outcome

    def complete(self, world: Reducer) -> str | None:
        """End the flip: give all ranks their weights, and compare the state with that before.

        A collective of the new world.  It comes after the vote, as low-precision weights may be
        those that the old plan trains with.

        Returns:
            The digest of the state as the new plan holds it; None: it is not asked for.

        Raises:
            TransferFailed: it is not the digest from before the change.
        """
        move, successor = self.prepared.move, self.prepared.successor
        if successor is not None and move.plan.zero:
            self.bytes_spread = successor.engine.spread()
        self.lap("flip")
        if move.directive.training.verify != "Full":
            return None
        digest = agree(world, all_pieces(self.model, move.cuts), self._new_digests())
        if self.digest is not None and digest != self.digest:
            raise TransferFailed(
                f"the state has digest {digest} after the change, {self.digest} before it"
            )
        return digest

    def _begin(self, part: str) -> None:
        self.services.activity.begin(part)
        self.services.on_phase(part)

    def lap(self, name: str) -> None:
        """End a part of the stall."""
        self.laps[name] = time.monotonic()
