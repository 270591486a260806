"""Verdicts on search efficiency, and claims that cannot be told here."""

from __future__ import annotations

from benchmarks.paper.further_claims import FURTHER_CLAIMS, beside_mcts, beside_random


def stored(policy, random, mcts):
    return {
        "efficiency": {
            name: [[[16.0, rate / 2], [32000.0, rate]]]
            for name, rate in (("policy", policy), ("random", random), ("MCTS", mcts))
        }
    }


def test_random_and_tree_search_are_told_from_stored_curves():
    assert beside_random(stored(200, 150, 100)).holds is True
    assert beside_random(stored(200, 201, 100)).holds is False
    assert beside_mcts(stored(200, 150, 100)).holds is True
    assert beside_mcts(stored(200, 150, 170)).holds is False


def test_nothing_is_told_without_measurements():
    assert {claim.judge({}).holds for claim in FURTHER_CLAIMS} == {None}
    assert all(claim.judge({}).figure for claim in FURTHER_CLAIMS)
