"""Compositions: read from text and files, equal whatever the order, wrong ones refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.composition import MOST_GPUS, MOST_NODES, Composition, Node
from planner.errors import InvalidComposition
from tests.refusals import refused

NODE = {"name": "a", "type": "h100", "gpus": 1}


def test_text_names_types_nodes_and_sizes():
    composition = Composition.from_text("h100 = 2x8, a100-40=1x4 + 1x2")
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
    one, other = Node(name="a", gpu_type="h100", gpus=8), Node(name="b", gpu_type="h100", gpus=4)
    assert Composition((one, other)) == Composition((other, one))
    assert Composition((one, other)).digest == Composition((other, one)).digest
    assert Composition((one,)).digest != Composition((other,)).digest


def test_json_reads_back_to_an_equal_composition():
    composition = Composition(
        (
            Node(name="a", gpu_type="h100", gpus=8, link_domain="rack-1", speed_factor=0.8),
            Node(name="b", gpu_type="h100", gpus=4),
        )
    )
    assert Composition.from_json(composition.to_json()) == composition


def test_price_and_network_card_are_written_only_where_somebody_stated_them():
    rows = [
        {"name": "a", "type": "h100", "gpus": 8, "price": 20, "nic_gbit_s": 33.3},
        {"name": "b", "type": "h100", "gpus": 8},
    ]
    composition = Composition.from_json(rows)
    assert composition.node("a").price == 20.0
    assert composition.nics == {"a": 4_162_500_000.0}
    written = composition.to_json()
    assert (written[0]["price"], written[0]["nic_gbit_s"]) == (20.0, 33.3)
    assert not {"price", "nic_gbit_s"} & set(written[1])
    assert Composition.from_json(written) == composition


def test_a_network_card_is_the_same_after_it_was_written_and_read():
    for gbit_s in (0.1, 1 / 3, 25, 99.999, 400):
        row = {"name": "a", "type": "h100", "gpus": 1, "nic_gbit_s": gbit_s}
        once = Composition.from_json([row])
        assert Composition.from_json(once.to_json()) == once


def test_a_type_may_be_named_twice():
    nodes = Composition.from_text("h100=1x8,a100-40=1x4,h100=2x4").nodes
    assert [(n.name, n.gpus) for n in nodes if n.gpu_type == "h100"] == [
        ("h100-0", 8),
        ("h100-1", 4),
        ("h100-2", 4),
    ]


def test_nodes_can_be_found_and_left_out():
    composition = Composition.from_text("h100=2x8")
    assert composition.node("h100-1").gpus == 8
    assert composition.without(["h100-0"]).gpus == 8
    with pytest.raises(KeyError):
        composition.node("h100-2")


@pytest.mark.parametrize(
    "text",
    [
        "h100",
        "h100=8",
        "=1x8",
        "h100=1x8+",
        "h100=ax8",
        "h100=1x0",
        "h100=0x8",
        "h100=-1x8",
        "h100=999999999x8",
        "h100=1x99999",
    ],
)
def test_text_that_does_not_read_so_is_refused(text):
    with pytest.raises(InvalidComposition):
        Composition.from_text(text)


@pytest.mark.parametrize(
    ("rows", "mistake"),
    [
        ({}, ("Malformed", None)),
        (["a"], ("Malformed", None)),
        ([{"name": "a", "type": "h100", "gpu": 1}], ("Unknown", "gpu")),
        ([{**NODE, "rack": 1}], ("Unknown", "rack")),
        ([{"name": "a", "type": "h100"}], ("Malformed", "gpus")),
        ([{**NODE, "gpus": True}], ("Malformed", "gpus")),
        ([{**NODE, "gpus": 0}], ("OutOfRange", "gpus")),
        ([{**NODE, "gpus": -4}], ("OutOfRange", "gpus")),
        ([{**NODE, "gpus": MOST_GPUS + 1}], ("OutOfRange", "gpus")),
        ([{**NODE, "speed_factor": 0}], ("OutOfRange", "speed_factor")),
        ([{**NODE, "speed_factor": 1e-9}], ("OutOfRange", "speed_factor")),
        ([{**NODE, "speed_factor": "x"}], ("OutOfRange", "speed_factor")),
        ([{**NODE, "price": "x"}], ("OutOfRange", "price")),
        ([{**NODE, "price": -1}], ("OutOfRange", "price")),
        ([{**NODE, "price": True}], ("OutOfRange", "price")),
        ([{**NODE, "price": float("nan")}], ("OutOfRange", "price")),
        ([{**NODE, "price": None}], ("OutOfRange", "price")),
        ([{**NODE, "nic_gbit_s": 0}], ("OutOfRange", "nic_gbit_s")),
        ([{**NODE, "nic_gbit_s": ".inf"}], ("OutOfRange", "nic_gbit_s")),
        ([{**NODE, "nic_gbit_s": float("inf")}], ("OutOfRange", "nic_gbit_s")),
        ([{**NODE, "hosts": 1}], ("Malformed", "hosts")),
        ([{**NODE, "hosts": [True]}], ("Malformed", "hosts")),
        ([{**NODE, "gpus": 4, "hosts": [4, 4]}], ("Contradiction", "hosts")),
        ([{**NODE, "gpus": 4, "hosts": [4, 0]}], ("OutOfRange", "hosts")),
        ([NODE] * 2, ("GivenTwice", "name")),
        ([{**NODE, "name": ""}], ("Malformed", "name")),
        ([{**NODE, "type": ""}], ("Malformed", "type")),
        ([{**NODE, "name": str(n)} for n in range(MOST_NODES + 1)], ("OutOfRange", None)),
        ([{**NODE, "name": "a b"}], ("Malformed", "name")),
    ],
)
def test_a_nodes_file_with_a_mistake_is_refused_by_its_field(rows, mistake):
    with refused(InvalidComposition, *mistake):
        Composition.from_json(rows)


@pytest.mark.parametrize(
    ("hosts", "gpus", "expected"),
    [((), 4, ()), ((4,), 4, ()), ((2,), 4, (2, 2)), ((2, 4), 4, (2, 2)), ((4, 2), 3, ())],
)
def test_the_hosts_of_a_node_cover_its_gpus(hosts, gpus, expected):
    node = Node(name="a", gpu_type="h100", gpus=gpus, hosts=hosts)
    assert node.hosts == expected
    composition = Composition((node,))
    assert Composition.from_json(composition.to_json()) == composition
    assert ("hosts" in composition.to_json()[0]) == bool(expected)
    assert (composition.digest == Composition((replace(node, hosts=()),)).digest) != bool(expected)
