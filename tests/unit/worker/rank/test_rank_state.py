"""worker/rank/state.py: what a rank holds, through failure and change of epoch."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import HashStore

from planner.plans.ranks import RankMap
from tests.fakes.transport import Board
from tests.unit.worker.changes import MODEL, change, cut, held_by, plan, shards_of, whole_state
from worker.engine.seam import Progress
from worker.rank.held_state import HeldState, all_pieces
from worker.rank.move import plan_move
from worker.rank.rank_state import RankState
from worker.rank.switch import Switch

OLD, NEW = plan("1x2"), plan("1x1+1x1")


class BrokenEngine:
    """An engine whose world broke while it held reduced gradients: `apply` is all it still can."""

    def __init__(self, seat, step, gradients_step=None):
        self.progress = Progress(step=step, gradients_step=gradients_step)
        self.norms = []
        self._shards = shards_of(seat, whole_state())

    def apply(self, gradient_norm):
        assert self.progress.gradients_step == self.progress.step, "there are no gradients"
        self.norms.append(gradient_norm)
        self.progress = Progress(step=self.progress.step + 1)

    def shards(self):
        return self._shards


def trained(step, gradients_step=None, old=OLD):
    (seat, *_) = RankMap.of(old).seats
    return RankState(epoch=1, seat=seat, engine=BrokenEngine(seat, step, gradients_step))


def switch_to(new, step, slot=0):
    """The switch of the rank on GPU `slot`; what it needs of the world is never touched here."""
    move = plan_move(MODEL, change(OLD, new), "tiny-a-0", slot)
    return Switch(MODEL, move, HashStore(), Board(1).transports()[0], None, step)


def test_a_new_process_holds_nothing_at_step_0():
    state = RankState()
    assert not state.holds_state
    assert state.progress == Progress(0)
    with pytest.raises(KeyError):
        state.holdings(MODEL).read(all_pieces(MODEL, frozenset({1}))[0])


@pytest.mark.parametrize("detached", [False, True], ids=["in an engine", "detached"])
def test_what_it_holds_can_be_sent(detached):
    state = trained(7)
    if detached:
        state.engine, state.detached = None, held_by(OLD, "a", 0)
    assert state.holds_state
    held, state = state.holdings(MODEL), whole_state()
    for piece in all_pieces(MODEL, frozenset({2})):
        assert all(map(torch.equal, held.read(piece), cut(piece, state)))


def test_gradients_are_applied_with_the_norm_that_others_know():
    state = trained(7, gradients_step=7)
    assert state.catch_up(8, 2.5) is None
    assert state.engine.norms == [2.5]
    assert state.progress.step == 8


@pytest.mark.parametrize("norm", [None, 2.5])
def test_a_rank_that_is_there_already_changes_nothing(norm):
    state = trained(8, gradients_step=8)
    assert state.catch_up(8, norm) is None
    assert (state.engine.norms, state.progress.step) == ([], 8)


@pytest.mark.parametrize(
    ("at", "step", "norm"), [(7, 8, None), (7, 9, 2.5), (9, 8, 2.5)], ids=["unknown", "far", "past"]
)
def test_a_step_that_cannot_be_reached_is_one_sentence(at, step, norm):
    state = trained(at, gradients_step=at)
    sentence = state.catch_up(step, norm)
    assert sentence == (
        f"the recovery asks for step {step}, this rank is at {at} and cannot reach it"
    )
    assert state.engine.norms == []


def test_a_joiner_reaches_every_step_for_it_holds_nothing():
    assert RankState().catch_up(8, 2.5) is None


def test_a_commit_puts_the_state_under_the_new_epoch_and_hands_back_the_old_engine():
    state, held, switch = trained(7), HeldState(MODEL), switch_to(NEW, 7)
    engine = state.engine
    assert state.commit(switch, held) is engine
    assert (state.epoch, state.also_epoch, state.engine) == (2, None, None)
    assert state.seat == RankMap.of(NEW).seats[0]
    assert state.holdings(MODEL) is held
    assert state.progress == Progress(step=7)


def test_after_a_commit_a_rank_without_a_seat_has_left():
    state = trained(7)
    elsewhere = plan("1x2", node="b")
    state.commit(switch_to(elsewhere, 7), HeldState(MODEL))
    assert (state.epoch, state.seat) == (2, None)


def test_who_never_learnt_the_outcome_holds_both_epochs():
    state, held, switch = trained(7), HeldState(MODEL), switch_to(NEW, 7)
    state.hold_both(switch, held)
    assert (state.epoch, state.also_epoch) == (1, 2)
    assert state.seat == RankMap.of(OLD).seats[0]
    assert state.holdings(MODEL) is held
    assert state.progress.step == 7


def test_a_joiner_that_never_learnt_the_outcome_holds_the_new_epoch_only():
    state, held, switch = RankState(), HeldState(MODEL), switch_to(NEW, 7, slot=1)
    state.hold_both(switch, held)
    assert (state.epoch, state.also_epoch) == (2, None)
    assert state.seat == RankMap.of(NEW).seats[1]
    assert state.progress.step == 7


def test_a_leaver_that_never_learnt_the_outcome_holds_the_old_epoch_only():
    state, held = trained(7), HeldState(MODEL)
    state.hold_both(switch_to(plan("1x2", node="b"), 7), held)
    assert (state.epoch, state.also_epoch) == (1, None)
    assert state.holdings(MODEL) is held
