"""The loop: it learns, it can be taken up again, and each of its parts can be left out."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest

from planner.model.catalogue import find_model
from planner.policy.environment import Episodes
from planner.policy.rollouts import PolicyActor, play
from planner.training.compositions import DEMO_TYPES
from planner.training.curriculum import curriculum_of
from planner.training.settings import TrainingSettings
from planner.training.teacher import teach
from planner.training.trainer import Trainer
from tests.unit.planner.training.conftest import TINY

PARTS = {one.name for one in fields(TrainingSettings) if one.type == "bool"} - {"sees_batch"}


def weights(trainer):
    return {name: value.copy() for name, value in trainer.network.weights.items()}


def equal(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 5, 9, 15, 17])
def test_a_training_taken_up_at_any_step_ends_with_the_same_weights(curriculum, stop):
    taken_up(curriculum, TINY, stop)


def best_of_four(network, environments):
    episodes = Episodes(environments, 4)
    play(episodes, PolicyActor(network, episodes, np.random.default_rng(0)))
    return episodes.best


def taken_up(curriculum, settings, stop):
    whole = Trainer(curriculum, settings)
    for _ in whole.run():
        pass
    cut = Trainer(curriculum, settings)
    for index, _ in enumerate(cut.run()):
        if index == stop:
            break
    again = Trainer(curriculum, settings)
    again.restore(copy.deepcopy(cut.state()))
    for _ in again.run():
        pass
    assert equal(weights(whole), weights(again))
    assert not equal(weights(whole), weights(cut))


@pytest.mark.slow
def test_every_round_of_teaching_goes_on_from_the_best_known(curriculum):
    starts = []

    def remembering(tables, limits, steps, seed, start=()):
        starts.append(start)
        return teach(tables, limits, steps, seed, start)

    trainer = Trainer(curriculum, replace(TINY, revisions=2), remembering)
    best = []
    for progress in trainer.run():
        if progress.phase == "improve":
            break
        if progress.phase == "clone" and progress.done == progress.total:
            best.append([trainer._buffers.best(c)[0] for c in range(8)])
    assert len(starts) == 3 * 8
    assert starts[:8] == [()] * 8
    assert [bool(start) for start in starts[8:16]] == [value > 0 for value in best[0]]
    assert (np.diff(best, axis=0) >= 0).all()


@pytest.mark.slow
def test_cloning_makes_the_best_of_four_better(curriculum):
    settings = replace(TINY, cloning=60, groups=1)
    trainer = Trainer(curriculum, settings)
    environments = [curriculum.environment(one) for one in curriculum.training]
    before = best_of_four(trainer.network, environments)
    for progress in trainer.run():
        if progress.phase == "improve":
            break
    after = best_of_four(trainer.network, environments)
    assert after.mean() > before.mean()
    assert (after >= before).mean() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_part_can_be_left_out_and_matters(part):
    found = []
    for settings in (TINY, replace(TINY, **{part: False})):
        trainer = Trainer(curriculum_of(find_model("tiny-llama"), DEMO_TYPES, settings), settings)
        for _ in trainer.run():
            pass
        found.append(weights(trainer))
    assert not equal(*found)


def test_alike_compositions_stand_beside_each_other(curriculum):
    trainer = Trainer(curriculum, TINY)
    picked = trainer._pick()
    kinds = [curriculum.training[c].composition.gpu_types for c in picked]
    changes = sum(one != other for one, other in pairwise(kinds))
    assert changes == len(set(kinds)) - 1
    assert sorted(picked) == sorted(set(picked))
