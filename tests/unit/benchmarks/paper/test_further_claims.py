"""Verdicts on search efficiency, and claims that cannot be told here."""

from __future__ import annotations

from benchmarks.paper.further_claims import (
    FURTHER_CLAIMS,
    beside_flat,
    beside_mcts,
    beside_random,
    pause,
    while_growing,
)
from benchmarks.paper.measured.learning import FLAT, LEARNING
from benchmarks.paper.measured.stand_in import SLOWDOWN


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


def learned(ours, flat):
    """Rates of two policies after so many plans."""
    at = (64.0, 256.0, 1000.0, 2000.0)
    rows = ((LEARNING, ours), (FLAT, flat))
    curves = {
        kind: [[list(p) for p in zip(at, (rates[0], *rates), strict=True)]] for kind, rates in rows
    }
    return {"flat-rl": {"curves": curves}}


def test_flat_rl_is_judged_beside_a_policy_that_learns_too():
    assert beside_flat(learned((100, 100, 110), (80, 90, 100))).holds is True
    assert beside_flat(learned((100, 100, 110), (70, 90, 100))).holds is False, "30 % below"
    assert beside_flat(learned((100, 100, 110), (80, 96, 100))).holds is False, "4 % below"
    assert beside_flat(learned((100, 100, 110), (80, 90, 99))).holds is False, "not yet there"


def grown(**seconds_s):
    """Jobs of two sizes by planner: seconds a step on the emulated clock, without a break."""
    runs = {}
    for planner, (first_s, second_s) in seconds_s.items():
        ends = [SLOWDOWN * first_s, SLOWDOWN * (first_s + second_s)]
        steps = [[0.0, ends[0]], ends]
        runs[planner.replace("_", "-")] = {"steps": steps, "joined_s": [0.0, *ends], "ended": ""}
    return {"growth-trained": {"trained": runs}}


def test_heddle_must_lead_at_every_size_and_alone_never_fall():
    assert while_growing(grown(heddle_3=(2, 1), sailor=(3, 4))).holds is True
    assert while_growing(grown(heddle_3=(2, 1), sailor=(3, 2))).holds is False, "neither falls"
    assert while_growing(grown(heddle_3=(2, 3), sailor=(3, 4))).holds is False, "both fall"
    assert while_growing(grown(heddle_3=(2, 2), sailor=(1, 3))).holds is False, "it does not lead"
    assert while_growing(grown(heddle_3=(2, 1))).holds is None, "nobody is beside it"
    early = grown(heddle_3=(2, 1), sailor=(3, 4))
    early["growth-trained"]["trained"]["sailor"]["ended"] = "no step was trained"
    assert while_growing(early).holds is None, "a size was not trained"


def test_a_pause_of_emulated_devices_tells_nothing_of_the_papers():
    repeats = [[{"stall_s": seconds_s, "reason": "join"}] for seconds_s in (0.2, 0.4)]
    verdict = pause({"reconfiguration": {"repeats": repeats}})
    assert verdict.holds is None
    assert "0.20 s to 0.40 s in 2 joins" in verdict.figure


def test_nothing_is_told_without_measurements():
    assert {claim.judge({}).holds for claim in FURTHER_CLAIMS} == {None}
    assert all(claim.judge({}).figure for claim in FURTHER_CLAIMS)
