"""worker/rank/saves.py: when a rank saves, and what of it the operator asked."""

from __future__ import annotations

import time

import pytest

from planner.plans.ranks import RankMap
from tests.unit.worker.changes import MODEL, change, plan, shards_of, whole_state
from tests.unit.worker.data.lines import prepared_lines
from worker.checkpoint import saver
from worker.checkpoint.attempts import Attempt, complete
from worker.checkpoint.folder_vault import FolderVault
from worker.checkpoint.saver import saver_of
from worker.control.messages import Save, Suspend
from worker.engine.seam import SAVE, SUSPEND, Progress
from worker.rank.move import plan_move
from worker.rank.rank_state import Layout
from worker.rank.saves import Saves
from worker.training_settings import Checkpointing

LIMIT_S = 30.0
PLAN = plan("1x2")


class Rank:
    """The only rank of a plan, which saves into a folder."""

    def __init__(self, folder, epoch=1, **how):
        directive = change(None, PLAN)
        data = directive.training.data.model_copy(
            update={"blend": directive.training.data.blend[:1]}
        )
        corpus = data.blend[0].model_copy(update={"path": prepared_lines(folder)})
        self.spec = directive.training.model_copy(
            update={
                "checkpoint": Checkpointing(path=str(folder / "saves"), **how),
                "data": data.model_copy(update={"blend": (corpus,)}),
                "shape": MODEL.to_json(),
            }
        )
        self.vault, self.saves = FolderVault(folder / "saves"), Saves()
        self.directive = directive
        self.follow(epoch)

    def follow(self, epoch):
        updated = self.directive.model_copy(update={"epoch": epoch, "training": self.spec})
        member = updated.members[0]
        move = plan_move(MODEL, updated, member.pod, member.slot)
        self.saves.begin(move, saver_of(MODEL, updated, PLAN, move.seat))
        seat = RankMap.of(PLAN).seats[0]
        self.layout = Layout(epoch, seat, shards_of(seat, whole_state()))

    def boundary(self, step, agreed=None):
        self.saves.at_boundary(self.spec, Progress(step=step, updates=step), self.layout, agreed)

    def ended(self):
        """(step, outcome) of each save, once none is under way."""
        until_s = time.monotonic() + LIMIT_S
        found = []
        while self.saves.is_running and time.monotonic() < until_s:
            found += self.saves.take_records()
            time.sleep(0.01)
        assert not self.saves.is_running
        return [(record.step, record.outcome) for record in found]


def test_without_a_path_nothing_is_ready_and_nothing_saved(tmp_path):
    rank = Rank(tmp_path, every_steps=2)
    rank.spec = rank.spec.model_copy(update={"checkpoint": None})
    rank.follow(2)
    rank.saves.hear(Save())
    assert rank.saves.ready() is None
    rank.boundary(2)
    assert rank.ended() == []


def test_steps_are_saved_as_often_as_the_job_says(tmp_path):
    rank = Rank(tmp_path, every_steps=2)
    rank.boundary(1)
    assert rank.ended() == []
    rank.boundary(2)
    assert rank.ended() == [(2, "saved")]
    assert complete(rank.vault.names()) == (Attempt(epoch=1, step=2),)


def test_a_rank_is_ready_to_save_once_its_time_has_passed(tmp_path):
    rank = Rank(tmp_path, every_s=0.05)
    assert rank.saves.ready() is None
    until_s = time.monotonic() + LIMIT_S
    while rank.saves.ready() != SAVE:
        assert time.monotonic() < until_s
    rank.boundary(3, SAVE)
    assert rank.ended() == [(3, "saved")]


@pytest.mark.parametrize("agreed", [None, SAVE])
def test_a_save_that_is_asked_for_waits_until_all_ranks_agree(tmp_path, agreed):
    rank = Rank(tmp_path)
    rank.saves.hear(Save())
    assert rank.saves.ready() == SAVE
    rank.boundary(3, agreed)
    assert rank.ended() == ([(3, "saved")] if agreed else [])
    assert rank.saves.ready() == (None if agreed else SAVE)


def test_a_suspension_ends_when_its_checkpoint_is_whole(tmp_path):
    rank = Rank(tmp_path)
    rank.saves.hear(Suspend())
    assert rank.saves.ready() == SUSPEND
    rank.boundary(5, SUSPEND)
    until_s = time.monotonic() + LIMIT_S
    while (is_saved := rank.saves.suspended()) is None:
        assert time.monotonic() < until_s
    assert is_saved
    assert complete(rank.vault.names()) == (Attempt(epoch=1, step=5),)
    assert rank.saves.ready() is None


def test_a_suspension_whose_store_refuses_is_over_too(tmp_path):
    rank = Rank(tmp_path)
    (tmp_path / "saves").write_text("no folder")
    rank.boundary(5, SUSPEND)
    until_s = time.monotonic() + LIMIT_S
    while (is_saved := rank.saves.suspended()) is None:
        assert time.monotonic() < until_s
    assert not is_saved
    assert [outcome for _, outcome in rank.ended()] == ["failed"]


def test_a_suspension_without_memory_for_a_copy_is_over_at_once(tmp_path, monkeypatch):
    def no_memory(part):
        raise MemoryError

    monkeypatch.setattr(saver, "_copied", no_memory)
    rank = Rank(tmp_path)
    rank.boundary(5, SUSPEND)
    assert rank.saves.suspended() is False
    assert {outcome for _, outcome in rank.ended()} == {"failed"}


def test_a_save_goes_on_under_the_next_epoch_with_the_state_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "PACED_BYTES_S", 1.0)
    monkeypatch.setattr(saver, "PACED_S", 3600.0)
    rank = Rank(tmp_path, every_steps=2)
    rank.boundary(2)
    rank.follow(2)
    assert rank.ended() == [(2, "saved")]
    assert complete(rank.vault.names()) == (Attempt(epoch=1, step=2),)


def test_checkpoints_of_an_earlier_job_of_the_name_are_older(tmp_path):
    rank = Rank(tmp_path, every_steps=2, epochs_before=5)
    rank.boundary(2)
    rank.ended()
    assert complete(rank.vault.names()) == (Attempt(epoch=6, step=2),)
