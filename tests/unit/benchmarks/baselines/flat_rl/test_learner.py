"""flat-RL: what it decides, what counts, and that it learns the same from the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.baselines.flat_rl.episodes import RawEpisodes, play
from benchmarks.baselines.flat_rl.learner import MASKED, RAW, STRUCTURE, Learner, plan
from benchmarks.baselines.flat_rl.network import Actor, joined
from benchmarks.baselines.interface import Budget
from planner.estimator.build_tables import pricing_of
from planner.estimator.top_k import load_top
from planner.estimator.unplaced_plan import most_replicas, new_plan
from planner.plans.plan import faults
from planner.training.records import Forcing
from tests.baselines import question

pytestmark = pytest.mark.slow  # loads the estimator
FEW = 16  # rollouts


def learner(decided, seed=0, text="h100=1x4,a100-40=1x4"):
    asked = question(text, layers=6, batch=16, seed=seed)
    return Learner(asked, pricing_of(asked.workload, asked.composition, asked.profile), decided)


def played(decided, fits=lambda _: True):
    one = learner(decided)
    episodes = RawEpisodes(one._environment, FEW, decided)
    nobody = np.zeros(FEW, bool)
    generator = np.random.default_rng(0)
    actor = Actor(one._network, episodes, generator, Forcing(nobody, nobody), episodes.candidates)
    play(episodes, actor, fits)
    return one, episodes, actor.all_made()


@pytest.mark.parametrize("decided", [RAW, MASKED])
def test_layers_add_up_and_replicas_can_be_packed(decided):
    one = learner(decided)
    for _ in range(6):
        one.improve()
    tables = one._environment.pricing.tables
    found = new_plan()
    assert one.top_k.number[0] > 0
    for row in range(int(one.top_k.number[0])):
        load_top(one.top_k, row, found)
        for k in range(int(found.number[0])):
            blocks = found.blocks[k, 0, : found.depth[k]]
            assert blocks.sum() == tables.layers
            assert (blocks >= 1).all()
            assert most_replicas(tables, found, k) >= found.replicas[k]


def test_without_masks_every_choice_is_open_and_those_that_fail_count():
    _, masked, _ = played(MASKED)
    _, raw, made = played(RAW)
    assert all(one.mask.all() for one in made.records.decisions[:3])
    assert made.records.decisions[4].mask.all(), "replicas"
    assert raw.invalid / raw.evaluations > masked.invalid / masked.evaluations > 0


def test_a_budget_ends_rollouts_before_it_is_exceeded():
    _, episodes, _ = played(MASKED, lambda priced: priced <= FEW)
    assert episodes.evaluations <= FEW
    assert len(episodes.live)


@pytest.mark.parametrize("decided", [RAW, STRUCTURE])
def test_what_was_recorded_is_judged_as_it_was_decided(decided):
    one, _, made = played(decided)
    for given in (made, joined([made.of_row(row) for row in range(FEW)])):
        logs = one._judge(given).logs
        for log, decisions in zip(logs, given.records.decisions, strict=True):
            np.testing.assert_allclose(log.detach().numpy(), decisions.old, rtol=1e-4, atol=1e-4)


def test_the_same_seed_learns_the_same_and_another_does_not():
    weights = []
    for seed in (0, 0, 1):
        one = learner(RAW, seed)
        for _ in range(2):
            one.improve()
        weights.append(one._weights.detach().numpy().copy())
    assert (weights[0] == weights[1]).all()
    assert (weights[0] != weights[2]).any()


def test_learning_makes_valid_plans_more_likely():
    one = learner(RAW)
    shares = []
    for updates in (3, 25, 3):
        priced, invalid = one.evaluations, one.invalid
        for _ in range(updates):
            one.improve()
        shares.append((one.invalid - invalid) / (one.evaluations - priced))
    assert shares[-1] < shares[0]


def test_equal_questions_get_equal_plans_and_a_larger_budget_is_never_worse():
    asked = question("h100=1x4,a100-40=1x4", layers=6, batch=16)
    few, again, many = (plan(asked, Budget(evaluations=n), MASKED) for n in (300, 300, 600))
    said = [[(one.own_s, one.laid_out()) for one in answer.plans] for answer in (few, again)]
    assert said[0] == said[1] != []
    assert few.plans_priced <= 300
    assert many.plans[0].own_s <= few.plans[0].own_s
    for ranked in few.plans:
        found = ranked.laid_out().as_plan()
        assert faults(found, asked.workload, asked.composition) == ()


def test_seconds_end_a_training_before_it_has_begun():
    answer = plan(question("h100=1x4"), Budget(seconds=0.0))
    assert (answer.plans, answer.plans_priced, answer.finished) == ((), 0, False)
