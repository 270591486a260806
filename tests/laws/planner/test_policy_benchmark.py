"""The policy's benchmark measures what it says: other profiles, whole enumerations, true shares."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest

from benchmarks.evaluation.references import Reference, References
from benchmarks.policy.cases import unseen
from benchmarks.policy.noise import MOST, changed
from benchmarks.policy.report import report
from benchmarks.policy.rival import advance
from planner.training.compositions import LEAST_DISTANCE, training_compositions, usual_types
from planner.training.likeness import Mix
from tests.builders import demo_profile


def test_the_rival_enumerates_every_template_once_slowest_first():
    now = np.zeros(1 + 3, np.int64)
    now[0] = 1
    seen = []
    step = getattr(advance, "py_func", advance)
    while now[0]:
        seen.append(tuple(int(place) for place in now[1 : 1 + now[0]]))
        step(now, 4)
    wanted = [row for d in (1, 2, 3) for row in combinations_with_replacement(range(4), d)]
    assert seen == wanted


def test_every_number_of_a_changed_profile_is_another_but_near():
    profile = demo_profile()
    other = changed(profile, MOST, 0)
    assert other.layers.keys() == profile.layers.keys()
    factors = {
        other.layers[key].forward_s / cost.forward_s
        for key, cost in profile.layers.items()
        if cost.forward_s
    }
    assert len(factors) > 10
    assert 1 - MOST <= min(factors) < 1 < max(factors) <= 1 + MOST
    assert changed(profile, MOST, 0) == other
    assert changed(profile, MOST, 1) != other
    assert other.digest != profile.digest


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-64b", "gpt-neo-2.7b", "tiny-llama"])
def test_no_measured_composition_is_trained_on(model):
    training = [Mix.of(known) for known in training_compositions(usual_types(model), 0)]
    measured = unseen(model)
    assert measured
    for one in measured:
        own = Mix.of(one.composition)
        assert min(own.distance(known) for known in training) >= LEAST_DISTANCE
        assert one.batch


def test_the_report_gives_shares_of_the_references_of_now():
    first, second = unseen("llama3-8b")[:2]
    references = References()
    for one, best in ((first, 200.0), (second, 100.0)):
        references.keep(
            Reference(
                model="llama3-8b",
                case=one.name,
                composition=one.text,
                batch=one.batch,
                throughput_samples_s=best,
                found_by="somebody",
            )
        )
    rolled = {"model": "llama3-8b", "rollouts_s": 0.01, "answer_s": 0.05, "note": ""}
    rows = [
        rolled
        | {"case": one.name, "method": method, "rollouts": n, "throughput_samples_s": reached}
        for one, shares in ((first, (190.0, 100.0)), (second, (97.0, 50.0)))
        for method, reached in zip(("policy", "random"), shares, strict=True)
        for n in (16, 128)
    ]
    timed = [
        {
            "model": "llama3-8b",
            "case": first.name,
            "method": method,
            "budget_s": 0.05,
            "throughput_samples_s": reached,
        }
        for method, reached in (("auto", 190.0), ("search", 195.0), ("columns", 180.0))
    ]
    chosen = {"llama3-8b": (first, replace(second))}
    seeded = {
        "model": "llama3-8b",
        "seed": 2,
        "groups": 4800,
        "clock_s": 500.0,
        "processor_s": 200.0,
        "found": {"16": {first.name: 190.0}, "128": {first.name: 195.0}},
    }
    measured = {"rollouts": rows, "anytime": timed, "seeds": [seeded]}
    text = report(measured, chosen, references, ["A note."])
    assert "96.00 % (goal 95: met, stretch 98: **missed**)" in text
    assert "50.00 %, +46.0 points" in text
    assert "10.0 / 10.0 (goal 20: met)" in text
    assert "-2.56 % (**missed**)" in text
    assert "| llama3-8b | 2 | 95.00 % (95.00, 95.00) | 97.50 % (97.50, 97.50) | 4,800 |" in text
    assert "Not measured: noise." in text
    assert text.endswith("- A note.\n")
