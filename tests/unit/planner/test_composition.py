"""Compositions: read from text and files, equal whatever the order, wrong ones refused."""

from __future__ import annotations

import pytest

from planner.composition import Composition, Node
from planner.errors import InvalidComposition


def test_text_names_types_nodes_and_sizes():
    composition = Composition.from_text("h100=2x8, a100-40=1x4+1x2")
    assert composition.to_json()[0]["name"] == "a100-40-0"
    assert [(n.gpu_type, n.gpus) for n in composition.nodes] == [
        ("a100-40", 4),
        ("a100-40", 2),
        ("h100", 8),
        ("h100", 8),
    ]
    assert composition.gpus == 22
    assert composition.gpu_types == ("a100-40", "h100")


def test_the_order_of_nodes_does_not_matter():
    one, other = Node("a", "h100", 8), Node("b", "h100", 4)
    assert Composition((one, other)) == Composition((other, one))
    assert Composition((one, other)).digest == Composition((other, one)).digest
    assert Composition((one,)).digest != Composition((other,)).digest


def test_json_reads_back_to_an_equal_composition():
    composition = Composition((Node("a", "h100", 8, "rack-1", 0.8), Node("b", "h100", 4)))
    assert Composition.from_json(composition.to_json()) == composition


def test_nodes_can_be_found_and_left_out():
    composition = Composition.from_text("h100=2x8")
    assert composition.node("h100-1").gpus == 8
    assert composition.without(["h100-0"]).gpus == 8
    with pytest.raises(KeyError):
        composition.node("h100-2")


@pytest.mark.parametrize("text", ["h100", "h100=8", "=1x8", "h100=1x8+", "h100=ax8", "h100=1x0"])
def test_text_that_does_not_read_so_is_refused(text):
    with pytest.raises(InvalidComposition):
        Composition.from_text(text)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({}, "holds a list of nodes"),
        (["a"], "node 1 is 'a'"),
        ([{"name": "a", "type": "h100", "gpus": 1, "rack": 1}], "unknown key 'rack'"),
        ([{"name": "a", "type": "h100"}], "gpus None"),
        ([{"name": "a", "type": "h100", "gpus": True}], "gpus True"),
        ([{"name": "a", "type": "h100", "gpus": 0}], "at least 1"),
        ([{"name": "a", "type": "h100", "gpus": 1, "speed_factor": 0}], "above 0"),
        ([{"name": "a", "type": "h100", "gpus": 1, "speed_factor": "x"}], "must be a number"),
        ([{"name": "a", "type": "h100", "gpus": 1}] * 2, "appears twice"),
    ],
)
def test_a_nodes_file_with_a_mistake_is_refused_with_its_place(rows, sentence):
    with pytest.raises(InvalidComposition, match=sentence):
        Composition.from_json(rows)
