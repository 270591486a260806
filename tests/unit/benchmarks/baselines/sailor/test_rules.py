"""Sailor's rules: even layers, and one TP degree for each type and stage."""

from __future__ import annotations

from benchmarks.baselines.quantities import Quantities
from benchmarks.baselines.sailor.rules import even_cuts, fits, tp_degrees
from tests.baselines import question


def test_the_last_stages_take_what_remains():
    """34 layers, as GPT-Neo-2.7B with embedding and head has."""
    assert even_cuts(34, 4) == (0, 8, 16, 25, 34)


def test_the_tp_degree_is_the_larger_of_memory_and_scaling():
    asked = question("h100=1x4,a6000=1x4", layers=32)
    numbers = Quantities(asked)
    found = tp_degrees(
        numbers, {"h100": (1, 2, 4), "a6000": (1, 2, 4)}, 1, even_cuts(34, 4), as_released=False
    )
    for kind, row in found.items():
        for stage, tp in enumerate(row):
            start, stop = even_cuts(34, 4)[stage : stage + 2]
            assert fits(numbers, kind, tp, 1, (start, stop, 4 - stage))
    assert min(found["h100"]) >= 2, "NVLink makes a stage more than 1.5 times as fast"


def test_a_type_that_fits_nowhere_leaves_the_search():
    numbers = Quantities(question("a6000=1x1", layers=32))
    assert tp_degrees(numbers, {"a6000": (1,)}, 1, even_cuts(34, 1), as_released=False) == {}


def test_as_released_the_first_type_by_name_ignores_scaling():
    numbers = Quantities(question("a100-80=1x4,h100=1x4"))
    degrees = {"a100-80": (1, 2, 4), "h100": (1, 2, 4)}
    released = tp_degrees(numbers, degrees, 1, even_cuts(6, 1), as_released=True)
    described = tp_degrees(numbers, degrees, 1, even_cuts(6, 1), as_released=False)
    assert released["a100-80"] < described["a100-80"]
    assert released["h100"] == described["h100"]
