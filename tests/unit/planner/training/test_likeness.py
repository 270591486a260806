"""How unlike compositions are: GPUs of another kind, and doublings of their number."""

from __future__ import annotations

import pytest

from planner.cluster.composition import Composition, Node
from planner.training.likeness import Mix, nearest, node_counts, node_text

of = Composition.from_text


def distance(one: Composition, other: Composition) -> float:
    return Mix.of(one).distance(Mix.of(other))


def test_nodes_are_counted_by_type_and_size():
    assert node_counts(of("h100=2x4+1x8,a6000=3x4")) == {
        ("h100", 4): 2,
        ("h100", 8): 1,
        ("a6000", 4): 3,
    }


def test_distance_counts_gpus_of_another_kind_and_doublings():
    assert distance(of("h100=4x4"), of("h100=4x4")) == 0
    assert distance(of("h100=4x4"), of("h100=2x8")) == 1
    assert distance(of("h100=4x4"), of("h100=2x4")) == 1
    assert distance(of("h100=3x4,a6000=1x4"), of("h100=1x4,a6000=3x4")) == pytest.approx(0.5)
    assert distance(of("h100=4x4"), of("a6000=8x4")) == 2


def test_distance_does_not_look_at_names_or_speed():
    slow = Composition(
        (
            Node(name="b", gpu_type="h100", gpus=4, speed_factor=0.5),
            Node(name="a", gpu_type="h100", gpus=4),
        )
    )
    assert distance(slow, of("h100=2x4")) == 0


def test_distance_is_symmetric():
    one, other = of("h100=3x4+5x1,a6000=2x8"), of("h100=7x2,a100-40=16x4")
    assert distance(one, other) == pytest.approx(distance(other, one))


def test_nearest_is_the_first_of_the_least_unlike():
    among = (of("h100=8x4"), of("h100=2x4"), of("a6000=4x4"))
    assert nearest(of("h100=4x4"), among) == (among[0], 1.0)
    assert nearest(of("h100=3x4"), among)[0] == among[1]


def test_a_composition_is_written_as_it_is_read():
    text = "a100-40=2x4+3x1,h100=8x4"
    assert node_text(node_counts(of(text))) == text
