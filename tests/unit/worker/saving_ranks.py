"""Ranks of a plan that save into a folder, without a world."""

from __future__ import annotations

import time
from dataclasses import dataclass

from planner.plans.ranks import RankMap
from tests.unit.worker.changes import MODEL, change, plan, shards_of, whole_state
from tests.unit.worker.data.lines import prepared_lines
from worker.checkpoint.saver import saver_of
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.engine.seam import Evaluation, Progress
from worker.rank.move import plan_move
from worker.rank.rank_state import Layout
from worker.rank.saves import Saves
from worker.state.still import StillState
from worker.training_settings import Checkpointing

LIMIT_S = 30.0
PLAN, TWO = plan("1x2"), plan("1x1+1x1")


@dataclass(frozen=True)
class _Evaluates:
    """An engine whose model has this held-out loss."""

    progress: Progress
    loss: float

    def evaluate(self):
        return Evaluation(self.loss, samples=8)


@dataclass(frozen=True)
class _Says:
    """A world whose other ranks say this."""

    others: bool

    def all_say(self, word):
        return word and self.others


class Rank:
    """A rank of a plan, by default the only one, which saves into a folder."""

    def __init__(self, folder, epoch=1, evaluate_every=None, plan=PLAN, rank=0, **how):
        directive, self.plan, self.rank = change(None, plan), plan, rank
        data = directive.training.data.model_copy(
            update={"blend": directive.training.data.blend[:1]}
        )
        corpus = data.blend[0].model_copy(update={"path": prepared_lines(folder)})
        self.spec = directive.training.model_copy(
            update={
                "checkpoint": Checkpointing(path=str(folder / "saves"), **how),
                "data": data.model_copy(update={"blend": (corpus,)}),
                "shape": MODEL.to_json(),
                "evaluate_every": evaluate_every,
            }
        )
        self.free, self.still = 1 << 30, StillState()
        self.vault, self.saves = FolderVault(folder / "saves"), Saves()
        self.directive = directive
        self.follow(epoch)

    def follow(self, epoch):
        updated = self.directive.model_copy(update={"epoch": epoch, "training": self.spec})
        member = updated.members[self.rank]
        move = plan_move(MODEL, updated, member.pod, member.slot, "gloo")
        self.saver = saver_of(MODEL, updated, self.plan, move.seat, self.still, lambda: self.free)
        self.saves.begin(move, self.saver)
        seats = RankMap.of(self.plan).seats
        self.layout = Layout(epoch, seats, move.seat, shards_of(move.seat, whole_state()))

    def boundary(self, step, agreed=None, is_whole=True):
        self.progress = Progress(step=step, updates=step)
        if is_whole:
            self.still.boundary(self.progress)
        self.saves.at_boundary(self.spec, self.progress, self.layout, agreed)

    def evaluated(self, loss, others_say=True):
        """An evaluation at the boundary that was reached last; whether it is saved as the best."""
        engine, world = _Evaluates(self.progress, loss), _Says(others_say)
        found, is_best = self.saves.evaluate(engine, world)
        self.saves.evaluated(self.spec, self.progress, self.layout, found.loss, is_best)
        return is_best

    def suspended(self):
        """Whether the checkpoint of a suspension is whole, once that is known."""
        until_s = time.monotonic() + LIMIT_S
        while (is_saved := self.saves.suspended()) is None:
            assert time.monotonic() < until_s
        return is_saved

    def ended(self):
        """(step, outcome) of each save, once none is under way."""
        until_s = time.monotonic() + LIMIT_S
        found = []
        while self.saves.is_running and time.monotonic() < until_s:
            found += self.saves.take_records()
            time.sleep(0.01)
        assert not self.saves.is_running
        return [(record.step, record.outcome) for record in found]


def train(step, *ranks):
    """The step of all ranks of a world, at whose end they save if all are ready."""
    for rank in ranks:
        rank.still.boundary(Progress(step=step - 1))
    votes = {rank.saves.ready() for rank in ranks}
    for rank in ranks:
        rank.boundary(step, next(iter(votes)) if len(votes) == 1 else None)
