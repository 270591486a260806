"""The card: what a policy must not be asked is refused in one sentence."""

from __future__ import annotations

import json

import pytest

from planner.cluster.composition import Composition
from planner.errors import InvalidPolicy, PolicyMisfit
from planner.estimator.build_tables import pricing_of
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.policy.card import PolicyCard
from planner.policy.schema import HEADS
from planner.profiles.generator import find_profile
from tests.refusals import refused

CARD = PolicyCard(
    model="llama3-8b",
    types=("a100-40", "h100"),
    tp_degrees=(1, 2, 4),
    d_max=24,
    t_max=8,
    most_types=1,
    most_node_gpus=4,
    sees_batch=True,
    uses_film=True,
    temperatures=(0.5, 1.0),
    features="",
    weights="",
    training_set="",
    num_compositions=1,
    profile="",
    groups=1,
    seed=0,
    commit="",
    settings={},
    evaluation={},
    seconds={},
    actions=HEADS,
)


@pytest.mark.parametrize(
    ("gpus", "deepest", "mistake"),
    [
        ("h100=1x4,a6000=1x4", 24, ("NotTrainedFor", "method")),
        ("h100=1x8", 24, ("NotTrainedFor", "method")),
        ("h100=1x4", 32, ("NotTrainedFor", "max_stages")),
        ("h100=1x4,a100-40=1x4", 24, ("NotTrainedFor", "method")),
        ("h100=1x6", 24, ("NotTrainedFor", "method")),
    ],
)
def test_what_was_not_trained_is_refused(gpus, deepest, mistake):
    composition = Composition.from_text(gpus)
    workload = Workload(
        model=find_model("llama3-8b"), global_batch=256, sequence_length=2048, precision="fp16"
    )
    pricing = pricing_of(workload, composition, find_profile(workload))
    with refused(PolicyMisfit, *mistake):
        CARD.require(composition, pricing, deepest)


def test_what_was_trained_is_not_refused():
    composition = Composition.from_text("h100=3x4+1x3")
    workload = Workload(
        model=find_model("llama3-8b"), global_batch=512, sequence_length=2048, precision="fp16"
    )
    pricing = pricing_of(workload, composition, find_profile(workload))
    CARD.require(composition, pricing, 24)


def test_a_card_survives_its_file():
    assert PolicyCard.from_text(json.dumps(CARD.to_json()), "card.json") == CARD


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "[" * 100_000, "{}"),
        json.dumps({**CARD.to_json(), "types": 3}),
        json.dumps({**CARD.to_json(), "temperatures": [0, 0]}),
        json.dumps({**CARD.to_json(), "uses_film": False}),
        json.dumps({**CARD.to_json(), "more": 1}),
    ],
)
def test_a_damaged_card_is_refused(text):
    with refused(InvalidPolicy, "Malformed"):
        PolicyCard.from_text(text, "card.json")
