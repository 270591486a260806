"""Curves rise; mixes are searched where a type is too small alone, and not too many of them."""

from __future__ import annotations

import pytest

from planner.cluster.composition import Composition, Node
from planner.request import PlanRequest
from planner.search.curves import mixed_throughputs, mixes, needed_mixes, throughput_curves
from tests.builders import demo_profile, nodes, workload


def test_a_curve_begins_where_the_memory_suffices_and_never_falls():
    composition = Composition(
        (*nodes("fast-0:3 slow-0:2").nodes, Node(name="new", gpu_type="h999", gpus=2))
    )
    request = PlanRequest(workload=workload(), composition=composition)
    curves = throughput_curves(request, demo_profile())
    assert set(curves) == {"demo-fast", "demo-slow"}
    assert curves["demo-fast"][0][0] == 2  # the tiny model needs two of these
    for curve in curves.values():
        rates = [rate for _, rate in curve]
        assert rates == sorted(rates)


def test_curves_that_were_interrupted_go_on_from_the_searches_that_were_done():
    request = PlanRequest(workload=workload(), composition=nodes("fast-0:3 slow-0:2"))
    whole = throughput_curves(request, demo_profile())
    known, asked = {}, iter([False] * 3 + [True])
    with pytest.raises(KeyboardInterrupt):
        throughput_curves(request, demo_profile(), lambda: next(asked), known)
    assert len(known) == 3
    asked = iter([False] * 2)  # the searches that are left
    assert throughput_curves(request, demo_profile(), lambda: next(asked), known) == whole


def test_a_gpu_that_is_too_small_alone_is_searched_with_others():
    request = PlanRequest(workload=workload(), composition=nodes("fast-0:1 slow-0:1"))
    curves = throughput_curves(request, demo_profile())
    (((mix, rate),), is_complete) = mixed_throughputs(request, demo_profile(), curves)
    assert (mix, is_complete) == ((1, 1), True)
    assert rate > sum(row[-1][1] for row in curves.values() if row)


def test_of_many_gpus_only_needed_mixes_are_searched():
    request = PlanRequest(workload=workload(), composition=nodes("fast-0:8 fast-1:8 slow-0:8"))
    curves = {"demo-fast": ((2, 1.0),), "demo-slow": ((1, 1.0),)}
    found, is_complete = mixed_throughputs(request, demo_profile(), curves)
    assert not is_complete
    assert [mix for mix, _ in found] == [(1, slow) for slow in range(1, 9)]


def test_needed_mixes_have_a_type_with_fewer_gpus_than_it_needs_alone():
    assert list(mixes([2, 2])) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert list(needed_mixes([2, 2], [2, 1])) == [(1, 1), (1, 2)]
    assert list(needed_mixes([4, 4], [1, 1])) == []
    assert list(needed_mixes([9], [10])) == []


def test_mixes_of_many_types_are_few():
    found = list(needed_mixes([1000] * 12, [9] * 12))
    assert len(found) == 64
    assert {sum(mix) for mix in found} == {2}
