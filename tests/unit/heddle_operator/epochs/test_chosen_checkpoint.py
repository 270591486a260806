"""epochs/chosen_checkpoint.py: the newest checkpoint that fits, unless a newer one is refused."""

from __future__ import annotations

import pytest

from heddle_operator.epochs.chosen_checkpoint import (
    newest_of,
    none_is_whole,
    why_refused,
    why_unread,
)
from worker.checkpoint_records import RefusedCheckpoint
from worker.contract import FoundCheckpoint, FoundCheckpoints


def told(*found, refused=(), error=None):
    return FoundCheckpoints(
        epoch=3,
        path="/saves",
        found=tuple(FoundCheckpoint(epoch=1, step=n, manifest=f"of {n}") for n in found),
        refused=tuple(
            RefusedCheckpoint(epoch=epoch, step=9, code=code, error="it is odd")
            for epoch, code in refused
        ),
        error=error,
    )


def test_the_newest_that_no_rank_has_tried_in_vain_is_taken():
    assert newest_of(told(9, 8)).step == 9
    assert newest_of(told(9, 8), {"of 9"}).step == 8
    assert newest_of(told()) is None


@pytest.mark.parametrize("code", ["other", "newer"])
def test_a_newer_one_of_another_job_or_heddle_is_refused_and_an_older_one_is_not(code):
    answer = told(8, refused=[(2, code)])
    assert why_refused(answer, newest_of(answer)) == "step 9 in /saves: it is odd"
    older = told(8, refused=[(0, code)])
    assert why_refused(older, newest_of(older)) == ""


def test_damaged_ones_are_refused_only_where_no_older_one_is_whole():
    answer = told(8, refused=[(2, "damaged")])
    assert why_refused(answer, newest_of(answer)) == ""
    assert none_is_whole(answer, newest_of(answer)) == ""
    assert "no checkpoint in /saves is whole" in none_is_whole(told(refused=[(2, "damaged")]), None)
    assert none_is_whole(told(), None) == ""


def test_what_cannot_be_read_is_said_with_its_path():
    assert why_unread(told(error="no")) == "/saves cannot be read: no"
    assert why_unread(told(8, refused=[(2, "unread")])) == "/saves cannot be read: it is odd"
    assert why_unread(told(8, refused=[(2, "damaged")])) == ""
