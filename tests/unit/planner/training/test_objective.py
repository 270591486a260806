"""Advantages, the clipped objective, and gradients that do not work against each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.policy.environment import Episodes
from planner.training.objective import (
    Judged,
    _worth_to_best,
    advantages,
    clipped,
    judge,
    without_conflicts,
)
from planner.training.records import Decisions, Forcing, Records, record
from planner.training.torch_network import TorchNetwork, as_network, initial_weights, named


def test_an_advantage_does_not_depend_on_the_scale_of_the_composition():
    values = np.array([1.0, 2.0, 3.0, 6.0])
    both = advantages(np.concatenate([values, 1000 * values]), 4)
    assert both[:4] == pytest.approx(both[4:])
    assert both[:4].sum() == pytest.approx(0)
    assert both.argmax() in (3, 7)


def test_equal_rollouts_have_no_advantage():
    assert advantages(np.full(8, 5.0), 4).tolist() == [0.0] * 8


def test_entropy_counts_by_template_or_by_decision(curriculum):
    one = curriculum.environment(curriculum.training[0])
    short = replace(one, limits=one.limits._replace(max_templates=1))
    weights = initial_weights(curriculum.schema, 0)
    network = as_network(weights.detach(), curriculum.schema, uses_film=True)
    none = np.zeros(16, bool)
    made = record(network, Episodes([short], 16), np.random.default_rng(0), Forcing(none, none))
    judging = TorchNetwork(named(weights, curriculum.schema))
    summary = torch.from_numpy(one.space.summary.astype(np.float32)[None])

    def entropy(records, **how):
        return float(judge(judging, records, summary, 16, **how).entropy.detach())

    each = [entropy(made.of_rows(row, row + 1)) for row in range(16)]
    decisions = [1 + 2 * int((made.decisions[1].row == row).sum()) for row in range(16)]
    assert len(set(decisions)) > 1
    assert entropy(made) == pytest.approx(np.mean(each), rel=1e-5)
    assert entropy(made, divides_entropy=False) == pytest.approx(
        np.average(each, weights=decisions), rel=1e-5
    )


@pytest.mark.parametrize("best_of", [2, 3, 6])
def test_the_worth_to_the_best_is_the_mean_over_all_choices_of_others(best_of):
    group = np.random.default_rng(best_of).random((3, 6))
    expected = [
        [
            np.mean(
                [
                    max(0.0, row[i] - max(others))
                    for others in combinations(np.delete(row, i), best_of - 1)
                ]
            )
            for i in range(6)
        ]
        for row in group
    ]
    assert np.allclose(_worth_to_best(group, best_of), expected)


def one_decision(old, free):
    """Two rollouts that made one choice of a depth each, and no stage."""
    none, empty = np.zeros((0, 1), np.float32), np.zeros(0, np.int64)
    candidates, mask = np.zeros((2, 2, 1), np.float32), np.ones((2, 2), bool)
    depths = Decisions(
        np.array([0, 1]), candidates, mask, np.zeros(2, np.int64), np.array(old), np.array(free)
    )
    nothing = Decisions(empty, none, none.astype(bool), empty, np.zeros(0), np.zeros(0, bool))
    return Records(np.zeros((2, 1), np.float32), empty, none, (depths, nothing, nothing))


def objective(now, old, gain, free=(True, True)):
    judged = Judged((torch.tensor(now), torch.zeros(0), torch.zeros(0)), torch.zeros(()))
    return float(clipped(judged, one_decision(old, free), np.array(gain), 0.2))


def test_a_gain_counts_up_to_the_clip_and_a_loss_in_full():
    likelier = float(np.log(2.0))
    assert objective([likelier, 0.0], [0.0, 0.0], [1.0, 0.0]) == pytest.approx(1.2 / 2)
    assert objective([likelier, 0.0], [0.0, 0.0], [-1.0, 0.0]) == pytest.approx(-2.0 / 2)


def test_a_forced_decision_earns_nothing():
    assert objective([0.0, 0.0], [0.0, 0.0], [5.0, 1.0], free=(False, True)) == pytest.approx(1.0)


def test_gradients_that_agree_are_averaged():
    found = without_conflicts(
        [torch.tensor([1.0, 0.0]), torch.tensor([1.0, 2.0])], np.random.default_rng(0)
    )
    assert found.tolist() == [1.0, 1.0]


@given(st.integers(0, 1000))
def test_of_two_that_conflict_the_result_opposes_neither(seed):
    draws = torch.Generator().manual_seed(seed)
    one, other = (torch.randn(5, generator=draws) for _ in range(2))
    found = without_conflicts([one, other], np.random.default_rng(seed))
    if torch.dot(one, other) >= 0:
        return
    assert torch.dot(found, one) >= -1e-5
    assert torch.dot(found, other) >= -1e-5


def test_one_gradient_alone_stays_as_it_is():
    found = without_conflicts([torch.tensor([3.0, -1.0])], np.random.default_rng(0))
    assert found.tolist() == [3.0, -1.0]
