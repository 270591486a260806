"""Free nodes: the heaps choose as a walk over all nodes would."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from planner.cluster.composition import Composition
from planner.placement.free_nodes import FreeNodes
from tests.builders import nodes


def walked(free: FreeNodes, gpu_type: str, gpus: int, wanted: int, near: tuple[str | None, ...]):
    """The choice by its definition."""
    room = free.with_room(gpu_type, gpus)
    if not room:
        return None
    wanted = min(wanted, max(node.gpus for node in room))

    def rank(node):
        left = free.free[node.name]
        misfit = (left < wanted, abs(left - wanted))
        return (node.name not in near, *misfit, -node.speed_factor, node.name)

    return min(room, key=rank).name


sizes = st.lists(
    st.tuples(st.sampled_from(("fast", "slow")), st.integers(1, 8), st.sampled_from((0.5, 1.0))),
    min_size=1,
    max_size=8,
)
questions = st.lists(
    st.tuples(
        st.sampled_from(("demo-fast", "demo-slow")),
        st.integers(1, 4),
        st.integers(1, 9),
        st.integers(0, 9),
    ),
    max_size=12,
)


@given(sizes, questions)
def test_the_best_node_is_the_one_that_a_walk_over_all_finds(rows, asked):
    text = " ".join(f"{kind}-{index}:{gpus}" for index, (kind, gpus, _) in enumerate(rows))
    alike = nodes(text).nodes
    composition = Composition(
        tuple(replace(n, speed_factor=row[2]) for n, row in zip(alike, rows, strict=True))
    )
    free = FreeNodes.of(composition)
    for gpu_type, gpus, wanted, mate in asked:
        near = (alike[mate].name,) if mate < len(alike) else (None,)
        best = free.best(gpu_type, gpus, wanted, near)
        assert best == walked(free, gpu_type, gpus, wanted, near)
        if best is not None:
            free.take(best, gpus)


def test_no_node_of_an_unknown_type_has_room():
    assert FreeNodes.of(nodes("fast-0:4")).best("demo-slow", 1, 1) is None


def test_copies_are_counted_by_layer():
    free = FreeNodes.of(nodes("fast-0:4"))
    free.take("fast-0", 1, range(2))
    free.take("fast-0", 1, range(1, 3))
    assert [free.copies("fast-0", range(i, i + 1)) for i in range(4)] == [1, 2, 1, 0]
