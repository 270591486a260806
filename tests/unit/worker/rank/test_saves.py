"""worker/rank/saves.py: when a rank saves, and what of it the operator asked."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tests.unit.worker.saving_ranks import LIMIT_S, TWO, Rank, train
from worker.checkpoint import saver, writing
from worker.checkpoint.attempts import Attempt, complete
from worker.checkpoint.manifest import Manifest
from worker.control.messages import Save, Suspend
from worker.engine.seam import SAVE, SUSPEND, Progress
from worker.rank.saves import UNAGREED_MOST


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
    train(1, rank)
    assert rank.ended() == []
    train(2, rank)
    assert rank.ended() == [(2, "saved")]
    assert complete(rank.vault.names()) == (Attempt(epoch=1, step=2),)


def test_a_suspension_that_reached_only_some_ranks_ends_no_saves(tmp_path):
    both = [Rank(tmp_path, plan=TWO, rank=rank, every_steps=2) for rank in (0, 1)]
    both[0].saves.hear(Suspend())
    for step in range(1, 2 * UNAGREED_MOST):
        train(step, *both)
    saved = [step for step, outcome in both[0].ended() if outcome == "saved"]
    assert saved == [step for step, outcome in both[1].ended() if outcome == "saved"]
    assert saved
    both[1].saves.hear(Suspend())  # it is still meant
    until_s, votes = time.monotonic() + LIMIT_S, []
    while set(votes) != {SUSPEND} and time.monotonic() < until_s:
        step += 1
        votes = [rank.saves.ready() for rank in both]
        train(step, *both)
    assert set(votes) == {SUSPEND}


def test_a_step_that_is_due_while_a_rank_still_writes_is_made_up_for_later(tmp_path, monkeypatch):
    """Rank 0 is faster in each save, and gives none up that the other goes on writing."""
    held, sync = threading.Event(), os.fsync

    def held_of_rank_1(file):
        assert "rank-1-" not in str(Path(f"/proc/self/fd/{file}").readlink()) or held.wait(LIMIT_S)
        sync(file)

    monkeypatch.setattr(os, "fsync", held_of_rank_1)
    both = [Rank(tmp_path, plan=TWO, rank=rank, every_steps=2) for rank in (0, 1)]
    for step in range(1, 7):
        train(step, *both)
    held.set()
    until_s, step = time.monotonic() + LIMIT_S, 6
    while step == 6 or complete(both[0].vault.names()) != (Attempt(1, 7), Attempt(1, 2)):
        assert time.monotonic() < until_s
        if all(rank.saves.ready() == SAVE for rank in both) and step == 6:
            step += 1
            train(step, *both)
    assert [rank.ended() for rank in both] == [[(2, "saved"), (7, "saved")]] * 2


def test_a_due_step_that_a_rank_missed_is_saved_where_the_next_epoch_begins(tmp_path):
    rank = Rank(tmp_path, every_steps=2)
    rank.boundary(2)  # the others were not ready
    rank.boundary(3, agreed=2)
    assert rank.ended() == [(3, "saved")]
    rank.boundary(5, agreed=3)
    assert rank.ended() == []


def test_no_save_is_given_up_for_one_where_the_next_epoch_begins(tmp_path):
    both = [Rank(tmp_path, plan=TWO, rank=rank, every_steps=2) for rank in (0, 1)]
    both[0].boundary(2, agreed=SAVE)
    both[0].boundary(4, agreed=2)  # the other one still writes
    both[1].boundary(2, agreed=SAVE)
    assert [rank.ended() for rank in both] == [[(2, "saved")]] * 2


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


def test_a_request_that_comes_again_while_its_save_is_made_asks_for_no_other(tmp_path, monkeypatch):
    rank = Rank(tmp_path)
    rank.saves.hear(Save())
    rank.boundary(3, SAVE)
    rank.saves.hear(Save())  # the operator has not heard of it yet
    assert rank.ended() == [(3, "saved")]
    for echo_s, ready in ((60.0, None), (0.0, SAVE)):
        monkeypatch.setattr("worker.rank.saves.ECHO_S", echo_s)
        rank.saves.hear(Save())
        assert rank.saves.ready() == ready


def test_a_suspension_ends_when_its_checkpoint_is_whole(tmp_path):
    rank = Rank(tmp_path)
    rank.saves.hear(Suspend())
    assert rank.saves.ready() == SUSPEND
    rank.boundary(5, SUSPEND)
    assert rank.suspended()
    assert complete(rank.vault.names()) == (Attempt(epoch=1, step=5),)
    assert rank.saves.ready() is None


def test_a_suspension_takes_as_long_as_its_store_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "SILENT_S", 1.0)
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (time.sleep(0.1), sync(file)))
    rank = Rank(tmp_path)
    rank.boundary(5, SUSPEND)
    began_s = time.monotonic()
    assert rank.suspended()
    assert time.monotonic() - began_s > 1.0


def test_a_suspension_whose_store_is_silent_fails_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "SILENT_S", 0.2)
    held = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda file: held.wait(LIMIT_S))
    rank = Rank(tmp_path)
    for step in (5, 6):
        rank.boundary(step, SUSPEND)
        assert not rank.suspended()
        (record,) = rank.saves.take_records()
        assert (record.outcome, record.error) == ("given up", "nothing was written within 0 s")
    held.set()
    assert rank.ended() == []


def test_the_end_waits_for_a_save_that_is_written_and_not_for_a_silent_one(tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "SILENT_S", 0.2)
    held = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda file: held.wait(LIMIT_S))
    rank = Rank(tmp_path)
    rank.boundary(5, SAVE)
    rank.saves.end()
    assert not rank.saves.has_ended()
    while not rank.saves.has_ended():
        pass
    assert rank.saves.has_ended()
    assert [record.outcome for record in rank.saves.take_records()] == ["given up"]
    held.set()
    assert rank.ended() == []


def test_training_tells_once_that_a_store_is_silent_and_that_it_came_back(tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "SILENT_S", 0.2)
    held, sync = threading.Event(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (held.wait(LIMIT_S), sync(file)))
    rank = Rank(tmp_path, every_steps=2)
    rank.boundary(2, SAVE)
    assert rank.saves.take_records() == ()
    until_s = time.monotonic() + LIMIT_S
    while not (told := rank.saves.take_records()):
        assert time.monotonic() < until_s
    (record,) = told
    assert (record.step, record.outcome) == (2, "failed")
    assert record.error == "nothing was written within 0 s; the store is waited for"
    assert rank.saves.take_records() == ()
    assert rank.saves.ready() is None, "it is still written"
    held.set()
    assert rank.ended() == [(2, "saved")]


def test_a_suspension_whose_store_refuses_is_over_too(tmp_path):
    rank = Rank(tmp_path)
    (tmp_path / "saves").write_text("no folder")
    rank.boundary(5, SUSPEND)
    assert not rank.suspended()
    assert [outcome for _, outcome in rank.ended()] == ["failed"]


def test_a_suspension_needs_no_memory_for_a_copy(tmp_path):
    rank = Rank(tmp_path)
    rank.free = 0
    rank.boundary(5, SUSPEND)
    assert rank.suspended()
    assert rank.ended() == [(5, "saved")]
    assert rank.still.staging_bytes == 0


def test_a_state_that_is_being_updated_is_not_saved_and_training_goes_on(tmp_path):
    rank = Rank(tmp_path)
    rank.still.before_update("1.q")
    rank.boundary(5, SAVE, is_whole=False)
    assert rank.ended() == [(5, "failed")]
    rank.boundary(6, SAVE)
    assert rank.ended() == [(6, "saved")]


def test_a_save_goes_on_under_the_next_epoch_with_the_state_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "PACED_BYTES_S", 1.0)
    monkeypatch.setattr(writing, "PACED_S", 3600.0)
    rank = Rank(tmp_path, every_steps=2)
    train(2, rank)
    rank.follow(2)
    assert rank.ended() == [(2, "saved")]
    assert complete(rank.vault.names()) == (Attempt(epoch=1, step=2),)


def test_a_save_that_cannot_be_whole_ends_with_the_second_change_of_plan(tmp_path):
    rank = Rank(tmp_path, plan=TWO, every_steps=2)
    train(2, rank)  # rank 1 is lost, and never saves its part
    former = rank.saver
    rank.follow(2)
    assert not former.wait(0.2)
    rank.follow(3)
    assert former.wait(LIMIT_S)


def test_checkpoints_of_an_earlier_job_of_the_name_are_older(tmp_path):
    rank = Rank(tmp_path, every_steps=2, epochs_before=5)
    train(2, rank)
    rank.ended()
    assert complete(rank.vault.names()) == (Attempt(epoch=6, step=2),)


def manifest_of(rank, epoch, step):
    return Manifest.from_bytes(rank.vault.read(Attempt(epoch, step).manifest))


def test_a_step_that_is_evaluated_is_saved_once_its_loss_is_known(tmp_path):
    rank = Rank(tmp_path, every_steps=2, evaluate_every=4)
    train(2, rank)
    assert rank.ended() == [(2, "saved")]
    assert manifest_of(rank, 1, 2).held_out_loss is None
    train(4, rank)
    assert not rank.saves.is_running
    assert rank.evaluated(1.5) is False  # nobody asks for the best
    assert rank.ended() == [(4, "saved")]
    assert manifest_of(rank, 1, 4).held_out_loss == 1.5


def test_a_boundary_at_which_another_epoch_begins_is_saved_before_its_evaluation(tmp_path):
    rank = Rank(tmp_path, every_steps=2, evaluate_every=2)
    rank.boundary(2, agreed=2)
    assert rank.ended() == [(2, "saved")]
    rank.follow(2)
    rank.evaluated(1.0)
    assert rank.ended() == []


def test_an_evaluation_with_the_lowest_loss_is_saved_if_all_ranks_say_so(tmp_path):
    rank = Rank(tmp_path, every_steps=100, evaluate_every=1, keep_last=1, keep_best=True)
    for step, loss, others, is_best in (
        (0, 9.0, True, False),  # the job starts from it
        (1, 2.0, True, True),
        (2, 2.0, True, False),
        (3, 1.0, False, False),
        (4, 1.5, True, True),
        (5, float("nan"), True, False),
    ):
        rank.boundary(step) if step else setattr(rank, "progress", Progress(step=0, updates=0))
        assert rank.evaluated(loss, others) is is_best
        assert rank.ended() == ([(step, "saved")] if is_best else [])
    assert complete(rank.vault.names()) == (Attempt(1, 4),)
    assert manifest_of(rank, 1, 4).held_out_loss == 1.5


def test_an_edit_of_the_job_changes_nothing_in_the_middle_of_an_epoch(tmp_path):
    rank = Rank(tmp_path, every_steps=100, evaluate_every=1)
    edited = rank.spec.checkpoint.model_copy(update={"keep_best": True})
    rank.spec = rank.spec.model_copy(update={"checkpoint": edited})  # other ranks know it later
    rank.boundary(1)
    assert not rank.evaluated(1.0)
    rank.follow(2)
    rank.boundary(2)
    assert rank.evaluated(0.5)


def test_a_due_save_whose_loss_is_not_finite_has_none(tmp_path):
    rank = Rank(tmp_path, every_steps=2, evaluate_every=2)
    train(2, rank)
    rank.evaluated(float("inf"))
    assert rank.ended() == [(2, "saved")]
    assert manifest_of(rank, 1, 2).held_out_loss is None
