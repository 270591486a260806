"""The last words tell what the result holds."""

from __future__ import annotations

import pytest

from heddle.demo.summary import OF_MIXTURES, summary
from planner.model.catalogue import find_model
from planner.model.workload import DEMO_MODELS

CHANGE = {"stall_s": 0.1, "restart_s": 7.0, "parts": {}}
RESULT = {
    "epochs": [
        {"reason": "start", "reconfiguration": None},
        {"reason": "join", "reconfiguration": CHANGE},
    ],
    "refusals": [{}],
    "processes": [
        {"epoch": 1, "ranks": [{"pid": 5, "started_s": 1.0}]},
        {"epoch": 2, "ranks": [{"pid": 5, "started_s": 1.0}, {"pid": 6, "started_s": 2.0}]},
    ],
    "losses": [5.5, 3.2],
    "max_loss_difference": 2e-6,
    "model": "tiny-llama",
    "checkpoint_reads": 0,
}  # fmt: skip


def test_what_happened_is_three_sentences():
    moved, cost, exact = summary(RESULT)
    assert "2 steps, changed its plan 1 time (join) and kept it 1 time" in moved
    assert "1 process trained before and after a change" in moved
    assert "0.10 s (a cold restart takes 7.0 s)" in cost
    assert "from 5.50 to 3.20" in exact
    assert "2.0e-06, within the allowed 1e-05" in exact


def test_a_loss_that_parts_from_the_reference_is_said_loudly():
    assert "MORE than the allowed" in summary({**RESULT, "max_loss_difference": 0.1})[2]


def test_a_run_that_was_not_compared_does_not_claim_it():
    assert summary({**RESULT, "max_loss_difference": None})[2] == "The losses were not compared."


@pytest.mark.parametrize(
    ("model", "allowed", "said"),
    [("tiny-mixtral", 1e-2, "1e-02"), ("tiny-deepseek", 1e-1, "1e-01")],
)
def test_a_mixture_may_leave_the_curve_as_plain_torch_leaves_itself(model, allowed, said):
    found = {**RESULT, "model": model, "max_loss_difference": allowed / 2}
    assert f"within the allowed {said}" in summary(found)[2]
    found["max_loss_difference"] = 2 * allowed
    assert f"MORE than the allowed {said}" in summary(found)[2]


def test_every_mixture_of_the_demo_has_an_allowance():
    mixtures = {name for name in DEMO_MODELS if find_model(name).experts}
    assert set(OF_MIXTURES) == mixtures
