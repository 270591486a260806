"""Shapes: kinds of layers, what TP can cut, and shapes that cannot be."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from planner.errors import InvalidWorkload
from planner.model.catalogue import MODELS, find_model
from planner.model.experts import Experts, Routing
from planner.model.shape import ModelShape
from tests.refusals import refused


def test_layers_have_kinds_and_dense_blocks_come_first():
    model = find_model("deepseek-v3-like")
    assert [model.kind(layer) for layer in (0, 1, 3, 4, 61, 62)] == [
        "embedding",
        "block",
        "block",
        "moe_block",
        "moe_block",
        "head",
    ]
    assert model.kinds_of(0, 6) == {"embedding": 1, "block": 3, "moe_block": 2}
    assert model.kinds_of(60, 63) == {"moe_block": 2, "head": 1}


@pytest.mark.parametrize("name", MODELS)
def test_the_kinds_of_any_range_are_those_of_its_layers(name):
    model = find_model(name)
    for start in range(0, model.layers + 2, 7):
        for stop in range(start + 1, model.layers + 3, 5):
            kinds = [model.kind(layer) for layer in range(start, stop)]
            assert model.kinds_of(start, stop) == {kind: kinds.count(kind) for kind in kinds}


def test_an_odd_vocabulary_is_padded_so_that_tp_cuts_it():
    model = find_model("gpt-neo-2.7b")
    assert (model.vocab, model.padded_vocab) == (50257, 50304)
    assert [tp for tp in (1, 2, 3, 4, 8, 16) if model.allows_tp(tp)] == [1, 2, 4, 8, 16]
    assert [tp for tp in (1, 2, 4, 8) if find_model("qwen3-30b-a3b").allows_tp(tp)] == [1, 2, 4]


@pytest.mark.parametrize(
    ("experts", "field"),
    [
        (Experts(count=0, per_token=1, ffn=8), "experts"),
        (Experts(count=4, per_token=5, ffn=8), "per_token"),
        (Experts(count=4, per_token=1, ffn=0), "experts"),
        (Experts(count=4, per_token=1, ffn=8, dense_blocks=2), "experts"),
        (Experts(count=4, per_token=1, ffn=8, routing=Routing(groups=3)), "groups"),
        (Experts(count=4, per_token=2, ffn=8, routing=Routing(groups=4)), "groups_kept"),
        (Experts(count=4, per_token=1, ffn=8, routing=Routing(groups_kept=2)), "groups_kept"),
        (Experts(count=4, per_token=1, ffn=8, routing=Routing(groups=0)), "groups"),
        (
            Experts(count=4, per_token=1, ffn=8, routing=Routing(groups=4, group_score="two")),
            "groups",
        ),
    ],
)
def test_impossible_experts_are_refused(experts, field):
    with refused(InvalidWorkload, "OutOfRange", field):
        ModelShape(
            name="odd", layers=2, hidden=8, heads=2, kv_heads=2, ffn=8, vocab=8, experts=experts
        )


@pytest.mark.parametrize("name", MODELS)
def test_a_shape_survives_json(name):
    assert ModelShape.from_json(asdict(find_model(name))) == find_model(name)


def test_a_shape_with_a_wrong_key_is_one_sentence():
    with refused(InvalidWorkload, "Unknown", "depth"):
        ModelShape.from_json({"name": "x", "depth": 3})
    with refused(InvalidWorkload, "Missing", "layers"):
        ModelShape.from_json({"name": "x"})
    with refused(InvalidWorkload, "Malformed"):
        ModelShape.from_json([])


@pytest.mark.parametrize(
    ("key", "value", "mistake"),
    [
        ("name", ["tiny-llama"], ("Malformed", "name")),
        ("name", "x" * 5000, ("OutOfRange", "name")),
        ("tied_head", [None], ("Malformed", "tied_head")),
        ("layers", 2.5, ("Malformed", "layers")),
        ("layers", True, ("Malformed", "layers")),
        ("hidden", 10**400, ("Malformed", "hidden")),
        ("scores", "slow", ("Malformed", "scores")),
        ("experts", {"count": "8", "per_token": 1, "ffn": 8}, ("Malformed", "count")),
        ("experts", "many", ("Malformed", None)),
        ("experts", {"count": 8, "ffn": 8}, ("Missing", "per_token")),
        ("experts", {"count": 8, "per_token": 1, "ffn": 8, "top": 1}, ("Unknown", "top")),
        (
            "experts",
            {"count": 8, "per_token": 1, "ffn": 8, "routing": {"top": 1}},
            ("Unknown", "top"),
        ),
        ("latent", [], ("Malformed", None)),
        ("latent", {"kv_rank": 8}, ("Missing", "query_rank")),
        ("arithmetic", {"rotary": {"scaling": {}}}, ("Missing", "kind")),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_short_sentence(key, value, mistake):
    with refused(InvalidWorkload, *mistake) as caught:
        ModelShape.from_json({**asdict(find_model("tiny-llama")), key: value})
    assert len(str(caught.value)) < 200
    assert "__init__" not in str(caught.value)
