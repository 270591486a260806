"""Many jobs divide many GPUs: as the slow rule does on one type, within limits on several."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_operator.rules.arbitration.arbitrate import arbitrate
from heddle_operator.rules.arbitration.demand import Demand
from heddle_operator.state.worth import Worth
from tests.fakes.operator import a_demand
from tests.oracle import arbiter as slow

# CPU seconds of one division; the goals are a third of these.
ONE_JOB_S, FIFTY_JOBS_S = 0.15, 0.6
THOUSAND = tuple((f"n{i:05d}", 8) for i in range(1000))
TYPES = ("fast", "middle", "slow")
# A type of which few GPUs are too small alone has so many mixes with another one.
MIXED = Worth(
    tuple(
        (name, tuple((2**i, speed * 2 ** (0.95 * i)) for i in range(first, 14)))
        for name, speed, first in (("fast", 4.0, 2), ("middle", 1.0, 4))
    ),
    tuple(((1 + k % 3, 1 + k), 5.0 + 2 * k) for k in range(13)),
)


def random_demands(seed, types=()):
    """One to five jobs on one to six nodes, some with pods."""
    chance = random.Random(seed)
    nodes = [(f"n{i}", chance.choice((1, 2, 4, 8))) for i in range(chance.randint(1, 6))]
    free, found = dict(nodes), []
    kinds = {name: chance.choice(types) for name, _ in nodes} if types else {}
    for job in range(chance.randint(1, 5)):
        pods = []
        for name, _ in nodes:
            while free[name] and chance.random() < 0.4:
                gpus = chance.randint(1, free[name])
                pods.append((name, gpus))
                free[name] -= gpus
        least = chance.choice((1, 1, 2, 3, 5))
        usable = [
            (name, gpus if chance.random() < 0.9 else chance.randint(1, gpus))
            for name, gpus in nodes
            if chance.random() < 0.9
        ]
        curves = tuple((kind, ((1, chance.uniform(1, 3)), (8, 20.0))) for kind in sorted(types))
        found.append(
            Demand(
                job=f"j{job}",
                priority=chance.choice((0, 0, 10, 20)),
                since=str(chance.randint(0, 3)),
                least=least,
                most=chance.choice((least, least + 2, 100, least - 1 or 1)),
                weight=chance.choice((0.25, 0.5, 0.75, 1.0)),
                nodes=tuple(usable),
                pods=tuple(pods),
                firm=chance.choice((math.inf, math.inf, math.inf, 2)),
                further=chance.choice((math.inf, math.inf, 0, 2)),
                min_holders=chance.choice((1, 1, 2, 3)),
                types=kinds,
                worth=Worth(curves) if types and chance.random() < 0.7 else None,
            )
        )
    return found


def without_zeros(answers):
    return {job: {n: gpus for n, gpus in row.items() if gpus} for job, row in answers.items()}


@given(st.integers(0, 10**9))
def test_on_one_gpu_type_the_answers_are_those_of_the_slow_rule(seed):
    demands = random_demands(seed)
    assert without_zeros(arbitrate(demands)) == without_zeros(slow.arbitrate(demands))


@given(st.integers(0, 10**9), st.integers(2, 3))
def test_no_gpu_is_dealt_twice_whatever_the_types(seed, types):
    demands = [
        replace(d, least=1, most=max(1, d.most)) for d in random_demands(seed, TYPES[:types])
    ]
    there, held, taken = Counter[str](), Counter[str](), Counter[str]()
    for demand in demands:
        for node, gpus in demand.nodes:
            there[node] = max(there[node], gpus)
        for node, gpus in demand.pods:
            held[node] += gpus
    for allowance in arbitrate(demands).values():
        taken.update(allowance)
    assert all(gpus <= max(there[node], held[node]) for node, gpus in taken.items())


@given(st.integers(0, 10**9), st.randoms(use_true_random=False))
def test_the_order_of_the_demands_changes_nothing(seed, chance):
    demands = random_demands(seed, TYPES)
    mixed = chance.sample(demands, len(demands))
    assert arbitrate(demands) == arbitrate(mixed)


def cpu_s(demands):
    """The least of three, as the machine may be busy."""
    found = []
    for _ in range(3):
        before_s = time.thread_time()
        arbitrate(demands)
        found.append(time.thread_time() - before_s)
    return min(found)


@pytest.mark.parametrize("types", [1, 2])
def test_a_thousand_free_nodes_are_divided_at_once(types):
    kinds = {name: TYPES[i % types] for i, (name, _) in enumerate(THOUSAND)}
    one = a_demand("u", THOUSAND, 8000, since="1", least=8, types=kinds)
    assert sum(arbitrate([one])["u"].values()) == 8000
    assert cpu_s([one]) < ONE_JOB_S
    fifty = [
        a_demand(f"u{k}", THOUSAND, 128, since=f"{k:03d}", least=8, types=kinds) for k in range(50)
    ]
    assert cpu_s(fifty) < FIFTY_JOBS_S * types
    if types > 1:
        mixed = [replace(demand, worth=MIXED) for demand in fifty]
        assert cpu_s(mixed) < FIFTY_JOBS_S * types


def test_a_job_is_dealt_the_type_that_is_worth_most_to_it():
    nodes = (("a", 4), ("b", 4))
    kinds = {"a": "slow", "b": "fast"}
    worth = Worth((("fast", ((1, 2.0), (4, 8.0))), ("slow", ((1, 1.0), (4, 4.0)))))
    beside = a_demand("other", nodes, 4, since="1", types=kinds, worth=worth)
    picky = Worth((("fast", ((1, 9.0), (4, 36.0))), ("slow", ((1, 1.0), (4, 4.0)))))
    steep = a_demand("steep", nodes, 4, since="2", types=kinds, worth=picky)
    assert arbitrate([beside, steep]) == {"other": {"a": 4}, "steep": {"b": 4}}


def test_a_job_on_the_wrong_type_is_dealt_the_right_one_beside_it():
    nodes, kinds = (("a", 4), ("b", 4)), {"a": "slow", "b": "fast"}
    worth = Worth((("fast", ((1, 2.0), (4, 8.0))), ("slow", ((1, 1.0), (4, 4.0)))))
    held = a_demand("u", nodes, 4, since="1", pods=(("a", 4),), types=kinds, worth=worth)
    assert arbitrate([held]) == {"u": {"a": 4, "b": 4}}


def test_alone_a_job_sees_as_many_gpus_of_each_type_as_it_may_have():
    nodes, kinds = (("a", 8), ("b", 8)), {"a": "slow", "b": "fast"}
    alone = a_demand("u", nodes, 4, since="1", types=kinds)
    assert arbitrate([alone]) == {"u": {"a": 4, "b": 4}}


def test_a_floor_leaves_to_others_the_only_type_that_they_can_use():
    both, fast = (("a", 2), ("b", 2)), (("b", 2),)
    kinds = {"a": "slow", "b": "fast"}
    any_type = a_demand("any", both, 2, since="1", least=2, types=kinds)
    only_fast = a_demand("only", fast, 2, since="2", least=2, types={"b": "fast"})
    assert arbitrate([any_type, only_fast]) == {"any": {"a": 2}, "only": {"b": 2}}


def worth(**curves):
    return Worth(tuple(sorted((gpu_type, tuple(row)) for gpu_type, row in curves.items())))


STEADY = worth(fast=[(1, 2.0), (2, 4.0), (4, 8.0)], slow=[(1, 1.0), (2, 2.0), (4, 4.0)])


def test_a_floor_leaves_to_others_the_only_type_of_which_they_have_a_plan():
    nodes, kinds = (("a", 2), ("b", 2)), {"a": "slow", "b": "fast"}
    any_type = a_demand("any", nodes, 2, priority=1, since="1", least=2, types=kinds, worth=STEADY)
    large = worth(fast=[(2, 4.0)], slow=[])
    only_fast = a_demand("only", nodes, 2, since="2", least=2, types=kinds, worth=large)
    assert arbitrate([any_type, only_fast]) == {"any": {"a": 2}, "only": {"b": 2}}


def test_a_gpu_that_alone_brings_nothing_fills_a_floor_where_another_brings_more():
    nodes, kinds = (("a", 4), ("b", 4)), {"a": "small", "b": "fast"}
    one = worth(fast=[(1, 3.6), (2, 7.2), (3, 10.3), (4, 14.1)], small=[])
    two = worth(fast=[(2, 4.1), (3, 6.4), (4, 8.4)], small=[])
    found = arbitrate(
        [
            a_demand("one", nodes, 4, since="1", least=2, types=kinds, worth=one),
            a_demand("two", nodes, 3, since="2", types=kinds, worth=two),
        ]
    )
    assert (found["one"]["b"], found["two"]["b"]) == (1, 3)


def test_two_jobs_share_what_neither_can_do_without_and_add_what_is_too_small_alone():
    """Throughputs of LLaMA-3-8B by the planner; alone it has no plan for GPUs of 16 GB."""
    nodes, kinds = (("a", 2), ("b", 2), ("c", 4)), {"a": "v100-16", "b": "v100-16", "c": "a100-80"}
    rates = Worth(
        (("a100-80", ((2, 4.08), (3, 6.37), (4, 8.36))), ("v100-16", ())),
        (((2, 1), 4.44), ((2, 2), 4.83), ((3, 1), 6.65), ((3, 2), 7.53), ((2, 4), 6.08)),
    )
    one = a_demand("one", nodes, 4, since="1", types=kinds, worth=rates)
    found = arbitrate([one, replace(one, job="two", since="2")])
    assert found["one"]["c"] == found["two"]["c"] == 2
    assert {n: g for n, g in found["one"].items() if g and n != "c"} in ({"a": 2}, {"b": 2})
    assert sum(found["two"].values()) == 4
