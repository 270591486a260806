"""worker/rank/rank_state.py: what a rank holds, through failure and change of epoch."""

from __future__ import annotations

import pytest

from planner.plans.ranks import RankMap
from planner.plans.regions import Cuts
from tests.equal_tensors import are_equal
from tests.unit.worker.changes import MODEL, cut, plan, shards_of, whole_state
from worker.contract import Resume
from worker.engine.seam import Progress
from worker.errors import HalfUpdated
from worker.rank.rank_state import Layout, RankState
from worker.state.held_state import all_pieces

OLD, NEW = plan("1x2"), plan("1x1+1x1")
AT_8 = Progress(step=8, updates=6)


class BrokenEngine:
    """An engine whose world broke while it held reduced gradients: `apply` is all it still can."""

    def __init__(self, progress):
        self.progress = progress
        self.norms = []

    def apply(self, gradient_norm):
        assert self.progress.gradients_step == self.progress.step, "there are no gradients"
        self.norms.append(gradient_norm)
        self.progress.step += 1


def layout_of(epoch, planned, rank=0):
    seats = RankMap.of(planned).seats
    seat = seats[rank]
    return Layout(epoch, seats, seat, shards_of(seat, whole_state()))


def trained(step, gradients_step=None):
    progress = Progress(step=step, updates=step, gradients_step=gradients_step)
    engine = BrokenEngine(progress)
    return RankState(layout=layout_of(1, OLD), engine=engine, progress=progress)


def test_a_new_process_holds_nothing_at_step_0():
    state = RankState()
    assert (state.layout, state.epoch, state.also_epoch, state.seat) == (None,) * 4
    assert state.progress == Progress(step=0)
    with pytest.raises(KeyError):
        state.holdings(MODEL).read(all_pieces(MODEL, Cuts(frozenset({1})))[0])


@pytest.mark.parametrize("engine", ["alive", "gone"])
def test_what_it_holds_can_be_sent_whatever_became_of_its_engine(engine):
    state = trained(7)
    if engine == "gone":
        state.engine = None
    held, whole = state.holdings(MODEL), whole_state()
    for piece in all_pieces(MODEL, Cuts(frozenset({2}))):
        assert are_equal(held.read(piece), cut(piece, whole))


def test_both_layouts_can_be_sent():
    """The second stage of one plan, and the first of another, are the whole model."""
    state = RankState(layout=layout_of(1, NEW, 1), also=layout_of(2, NEW, 0))
    held, whole = state.holdings(MODEL), whole_state()
    for piece in all_pieces(MODEL, Cuts(frozenset({1}))):
        assert are_equal(held.read(piece), cut(piece, whole))


def resume(step, norm):
    return Resume(step=step, gradient_norm=norm)


def test_an_update_that_fails_is_told_as_its_error(monkeypatch):
    state = trained(7, gradients_step=7)
    failure = HalfUpdated(7, RuntimeError("a kernel failed"))

    def apply(_):
        raise failure

    monkeypatch.setattr(state.engine, "apply", apply)
    assert state.catch_up(resume(8, 2.5)) is failure


def test_gradients_are_applied_with_the_norm_that_others_know():
    state = trained(7, gradients_step=7)
    assert state.catch_up(resume(8, 2.5)) is None
    assert state.engine.norms == [2.5]
    assert state.progress.step == 8


@pytest.mark.parametrize("norm", [None, 2.5])
def test_a_rank_that_is_there_already_changes_nothing(norm):
    state = trained(8, gradients_step=8)
    assert state.catch_up(resume(8, norm)) is None
    assert (state.engine.norms, state.progress.step) == ([], 8)


@pytest.mark.parametrize(
    ("at", "step", "norm"), [(7, 8, None), (7, 9, 2.5), (9, 8, 2.5)], ids=["unknown", "far", "past"]
)
def test_a_step_that_cannot_be_reached_is_one_sentence(at, step, norm):
    state = trained(at, gradients_step=at)
    error = state.catch_up(resume(step, norm))
    assert str(error) == (
        f"the recovery asks for step {step}, this rank is at {at} and cannot reach it"
    )
    assert state.engine.norms == []


def test_a_joiner_reaches_every_step_for_it_holds_nothing():
    assert RankState().catch_up(resume(8, 2.5)) is None


def test_a_commit_gives_the_state_to_the_new_engine_and_answers_the_old_one():
    state, after = trained(7), layout_of(2, NEW)
    old, new = state.engine, BrokenEngine(Progress())
    state.also = layout_of(3, NEW)
    assert state.commit(after, new, AT_8) is old
    assert state.still.step == 8  # the first save of the epoch needs it
    assert (state.layout, state.also, state.engine) == (after, None, new)
    assert (state.epoch, state.also_epoch, state.seat) == (2, None, RankMap.of(NEW).seats[0])
    assert state.progress == AT_8


def test_what_the_new_engine_does_is_the_progress_of_the_state():
    state, engine = trained(7), BrokenEngine(Progress())
    state.commit(layout_of(2, NEW), engine, AT_8)
    engine.progress.step += 1
    assert state.progress.step == 9


def test_after_a_commit_a_rank_without_a_seat_holds_nothing():
    state = trained(7)
    state.commit(None, None, AT_8)
    assert (state.epoch, state.seat, state.engine) == (None, None, None)


def test_who_never_learnt_the_outcome_holds_both_epochs_and_its_engine():
    state, after = trained(7), layout_of(2, NEW)
    before, engine = state.layout, state.engine
    state.hold_also(after, AT_8)
    assert (state.layout, state.also, state.engine) == (before, after, engine)
    assert (state.epoch, state.also_epoch) == (1, 2)
    assert state.progress.step == 7


def test_a_joiner_that_never_learnt_the_outcome_holds_the_new_epoch_only():
    state, after = RankState(), layout_of(2, NEW, 1)
    state.hold_also(after, AT_8)
    assert (state.epoch, state.also_epoch, state.seat) == (2, None, after.seat)
    assert state.progress == AT_8
