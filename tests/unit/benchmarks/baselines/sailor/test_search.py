"""Sailor's search against every split of the replicas over types."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest

from benchmarks.baselines.interface import Budget, Meter
from benchmarks.baselines.quantities import Quantities
from benchmarks.baselines.sailor import plan
from benchmarks.baselines.sailor.rules import even_cuts, tp_degrees
from benchmarks.baselines.sailor.search import _Search

pytestmark = pytest.mark.slow  # compiles its dynamic programme
from tests.baselines import question  # noqa: E402


def brute_force(asked, degrees):
    """The best seconds over every PP, size, DP and split, by the formula written out."""
    numbers, batch = Quantities(asked), asked.workload.global_batch
    types, best = sorted(degrees), math.inf
    stock = {k: sum(n.gpus for n in asked.composition.nodes if n.gpu_type == k) for k in types}
    for pp, size in product(range(1, 4), numbers.micro_batches):
        cuts = even_cuts(numbers.layers, pp)
        chosen = tp_degrees(numbers, degrees, size, cuts, as_released=False)
        for dp in range(1, batch // size + 1):
            splits = [
                s
                for s in product(range(dp + 1), repeat=len(types))
                if sum(s) == dp and all(k in chosen or not n for k, n in zip(types, s, strict=True))
            ]
            for rows in product(splits, repeat=pp):
                used = {
                    k: sum(row[t] * chosen[k][s] for s, row in enumerate(rows) if k in chosen)
                    for t, k in enumerate(types)
                }
                if all(used[k] <= stock[k] for k in types):
                    best = min(best, seconds_of(numbers, types, chosen, rows, cuts, size, dp))
    return best


def seconds_of(numbers, types, chosen, rows, cuts, size, dp):
    many = -(-numbers.question.workload.global_batch // (size * dp))
    kinds = [[k for t, k in enumerate(types) if row[t]] for row in rows]
    times, p2p, rings = [], [], []
    for s, (start, stop) in enumerate(pairwise(cuts)):
        times.append(
            max(sum(numbers.layer_seconds(k, chosen[k][s], size)[start:stop]) for k in kinds[s])
        )
        if s + 1 < len(rows):
            both = kinds[s] + kinds[s + 1]
            rate = min(numbers.between(a, b) for a in both for b in both)
            p2p.append(2 * numbers.boundary_bytes(size) / rate)
        rate = min(numbers.between(a, b) for a in kinds[s] for b in kinds[s])
        whole = sum(numbers.parameters(1)[start:stop]) * 2
        rings.append(2 * (dp - 1) / dp * whole / rate)
    with_p2p = [t + p for t, p in zip(times, [*p2p, 0.0], strict=True)]
    total = (many - 1) * max(with_p2p) + sum(times) + 2 * sum(p2p) + max(rings)
    if len(rows) == 1:
        profile = numbers.question.profile
        total += max(
            profile.gpu_type(k).optimizer_s_per_parameter * sum(numbers.parameters(chosen[k][0]))
            for k in kinds[0]
        )
    return total


@pytest.mark.parametrize(
    "text", ["h100=2x1", "h100=2x1,a100-40=2x1", "h100=1x2,a6000=1x2", "a100-80=3x1,a6000=2x1"]
)
def test_its_best_plan_is_that_of_brute_force(text):
    asked = question(text)
    largest = max(node.gpus for node in asked.composition.nodes)
    degrees = {
        kind: Quantities(asked).tp_degrees(kind, largest) for kind in asked.composition.gpu_types
    }
    assert plan(asked, Budget()).plans[0].own_s == pytest.approx(brute_force(asked, degrees))


def test_a_search_whose_seconds_are_over_has_priced_no_less_than_nothing():
    meter = Meter(Budget(seconds=0.5), clock=iter([0.0, *[1.0] * 1000]).__next__)
    search = _Search(question("h100=2x1"), meter, as_released=False)
    assert search._allowed() == 0
    assert plan(question("h100=2x1"), Budget(seconds=1e-9)).plans_priced >= 0


def test_layers_are_even_and_a_stage_has_one_tp_degree_for_each_type():
    for ranked in plan(question("h100=2x2,a6000=2x2", layers=10), Budget()).plans:
        (grid,) = ranked.laid_out().grids
        layers = [stage.blocks for stage in grid.stages]
        layers[0] += 1
        layers[-1] += 1
        assert layers == sorted(layers)
        assert max(layers) - min(layers) <= 1
        for stage in grid.stages:
            pairs = {(group.gpu_type, group.tp) for group in stage.groups}
            assert len(pairs) == len({kind for kind, _ in pairs})


def test_nodes_of_several_sizes_are_read_as_single_gpus():
    for ranked in plan(question("h100=1x2+2x1"), Budget()).plans:
        assert {g.tp for s in ranked.laid_out().grids[0].stages for g in s.groups} == {1}
