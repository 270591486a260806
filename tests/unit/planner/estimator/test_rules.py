"""Each rule of the cost model has one place: scale it there, and everything follows.

In a process where nothing is compiled, every function of `planner.cost.formulas` is scaled by 1.1,
one after the other.  The evaluator's price of twenty plans changes then, and the tables and the
estimate change as it does.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import getmembers, isfunction
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.cost import formulas
from planner.estimator import rules
from planner.estimator.build_tables import Pricing, pricing_of
from planner.estimator.fill.filling import fill_as, variant_of
from planner.estimator.fill.stage import peak_bytes, slot_of
from planner.estimator.gradient_sync import broadcast_seconds, sync_seconds
from planner.estimator.sharing import pipeline_seconds
from planner.estimator.top_k import load_top, new_top_k, remember
from planner.estimator.unplaced_plan import most_replicas, new_plan
from planner.estimator.whole_plan import iteration_seconds, optimizer_seconds
from planner.estimator.workspace import new_workspace
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.search.candidate import Candidate, Evaluator
from planner.search.unplaced_candidates import unplaced_candidate_of

SCALE = 1.1
LARGER = {"transient_bytes": 8.0}  # what else is no part of any peak
ALONE = "a100-40=9x1,h100=7x1,a6000=6x1"  # every GPU has a node and a network card of its own
EVEN = "h100=4x4"
SMALL_SEEDS = (693, 7798, 8453, 8579, 9907, 10166, 10194, 10206)
LARGE_SEEDS = (1827, 3817, 4098, 4529, 4655, 6421, 6429, 6452)
CASES = (  # workload, composition, seeds of plans that fit and whose placement leaves no choice
    (
        Workload(
            model=find_model("gpt-neo-2.7b"),
            global_batch=512,
            sequence_length=2048,
            memory="worker",
        ),
        ALONE,
        SMALL_SEEDS,
    ),
    (
        Workload(
            model=find_model("qwen3-30b-a3b"),
            global_batch=512,
            sequence_length=2048,
            zero=1,
            memory="paper",
        ),
        "h100=16x1,a100-80=12x1",
        LARGE_SEEDS,
    ),
    (
        Workload(
            model=find_model("llama3-8b"),
            global_batch=512,
            sequence_length=2048,
            precision="fp16",
            memory="paper",
        ),
        EVEN,
        (),
    ),
)
WHOLE_NODES = ((8, 0, 2), (4, 0, 4), (4, 1, 2), (2, 1, 4))  # depth, log2 of TP, replicas
INVERSE = "micro_batches_within"  # scaled with the rule that it is the inverse of
RULES = sorted(dict(getmembers(formulas, isfunction)).keys() - {INVERSE})

Specification = tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]


class Priced(NamedTuple):
    """What a plan costs, by the estimate or by the evaluator.

    Attributes:
        pipelines_s: slowest replica.
        sync_s: longest gradient sum.
        optimizer_s: longest optimizer step.
        broadcast_s: longest broadcasts of weights, where there is ZeRO.
        peak_bytes: of the stages of the first replica of each template.
    """

    pipelines_s: float
    sync_s: float
    optimizer_s: float
    broadcast_s: float
    peak_bytes: tuple[float, ...]


def specification(pricing: Pricing, seed: int) -> Specification:
    """A plan as stages, blocks and replicas of its templates."""
    random, layers, rows = Random(seed), pricing.tables.layers, []
    for _ in range(random.randint(1, 3)):
        depth = random.randint(layers // 8, layers // 5)
        options = tuple(random.randrange(len(pricing.options)) for _ in range(depth))
        cuts = [layers * s // depth + (0 < s < depth) * random.randint(-1, 1) for s in range(depth)]
        blocks = tuple(stop - start for start, stop in pairwise((*cuts, layers)))
        rows.append((options, blocks, random.randint(1, 2)))
    return tuple(rows)


def both_prices(
    pricing: Pricing, evaluator: Evaluator, plan: Specification
) -> tuple[Priced, Priced] | None:
    """(estimate, evaluator's price); None if it does not fit."""
    t, unplaced, work = pricing.tables, new_plan(), new_workspace(pricing.tables)
    unplaced.number[0] = len(plan)
    for k, (options, _, replicas) in enumerate(plan):
        unplaced.depth[k], unplaced.replicas[k] = len(options), replicas
        unplaced.options[k, : len(options)] = options
    if any(most_replicas(t, unplaced, k) < unplaced.replicas[k] for k in range(len(plan))):
        return None
    for k, (_, blocks, _) in enumerate(plan):
        fill_as(t, unplaced, k, np.array(blocks), work)
    value = iteration_seconds(t, unplaced, work, math.inf)
    if value == math.inf:
        return None
    estimate = Priced(
        pipeline_seconds(t, unplaced),
        sync_seconds(t, unplaced, work, t.spreads_experts == 1),
        optimizer_seconds(t, unplaced, work),
        broadcast_seconds(t, unplaced, work, t.spreads_experts == 1),
        tuple(float(n) for k in range(len(plan)) for n in peaks(pricing, unplaced, k)),
    )
    top_k = new_top_k()
    remember(top_k, unplaced, value)
    load_top(top_k, 0, unplaced)
    found = next(evaluator.placed(unplaced_candidate_of(pricing, unplaced, work)), None)
    return None if found is None else (estimate, price_of(found))


def price_of(found: Candidate) -> Priced:
    price = found.cost
    firsts = [replica for replica in price.replicas if replica.replica == 0]
    return Priced(
        price.iteration_s - price.sync_s - price.optimizer_s - price.broadcast_s,
        price.sync_s,
        price.optimizer_s,
        price.broadcast_s,
        tuple(float(s.peak_memory_bytes) for replica in firsts for s in replica.stages),
    )


def peaks(pricing: Pricing, unplaced: Any, k: int) -> Iterator[float]:
    """Peak bytes of the stages of a template by the estimator."""
    t, f, start = pricing.tables, unplaced.chosen[k], 0
    depth, replicas, size = (
        int(unplaced.depth[k]),
        int(unplaced.replicas[k]),
        int(unplaced.size[k, f]),
    )
    for s in range(depth):
        option, stop = int(unplaced.options[k, s]), start + int(unplaced.blocks[k, f, s])
        dense = min(stop, t.dense) - min(start, t.dense)
        slot = slot_of(option, size, s, depth, int(unplaced.most[k, f]), replicas)
        others = stop - start - dense
        yield peak_bytes(t, slot, variant_of(t, slot, dense, others), dense, others)
        start = stop


def priced_plans() -> list[tuple[Priced, Priced] | None]:
    """All plans at the formulas of now."""
    found = []
    for workload, text, seeds in CASES:
        composition, profile = Composition.from_text(text), find_profile(workload)
        pricing = pricing_of(workload, composition, profile)
        assert pricing is not None
        evaluator = Evaluator(workload=workload, composition=composition, profile=profile)
        plans = [specification(pricing, seed) for seed in seeds]
        if text == EVEN:
            plans = [(((o,) * d, (pricing.tables.layers // d,) * d, n),) for d, o, n in WHOLE_NODES]
        found += [both_prices(pricing, evaluator, plan) for plan in plans]
    return found


def scaled(name: str, rule: Callable[..., float]) -> Callable[..., float]:
    return lambda *args, **named: LARGER.get(name, SCALE) * rule(*args, **named)


def told() -> str:
    """{rule: what the plans cost with it scaled}, with `None` for the rules as they are."""
    answers = {"": priced_plans()}
    inverse = getattr(formulas, INVERSE)
    for name in RULES:
        plain = {name: getattr(formulas, name), INVERSE: inverse}
        changed = {name: scaled(name, plain[name])}
        if name == "pipeline_seconds":
            changed[INVERSE] = lambda limit_s, *rest: inverse(limit_s / SCALE, *rest)
        for module in (formulas, rules):
            for each in changed.keys() & vars(module).keys():
                setattr(module, each, changed[each])
        answers[name] = priced_plans()
        for module in (formulas, rules):
            for each in plain.keys() & vars(module).keys():
                setattr(module, each, plain[each])
    return json.dumps(answers)


SCRIPT = "from tests.unit.planner.estimator.test_rules import told; print(told())"


pytestmark = pytest.mark.slow  # half a second a rule


@pytest.fixture(scope="module")
def answers() -> dict[str, list[list[Priced]]]:
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    rows = json.loads(answer.stdout.splitlines()[-1])
    return {
        name: [both and [Priced(*one) for one in both] for both in row]
        for name, row in rows.items()
    }


def test_there_are_twenty_plans(answers):
    assert len(answers[""]) == 20
    assert all(answers[""])


@pytest.mark.parametrize("name", ["", *RULES])
def test_the_estimate_follows_the_evaluator_when_a_rule_is_scaled(answers, name):
    found = [both for both in answers[name] if both is not None]
    assert len(found) >= 7  # others do not fit any more
    for estimate, price in found:
        assert estimate.pipelines_s == pytest.approx(price.pipelines_s, rel=1e-9)
        assert estimate.optimizer_s == pytest.approx(price.optimizer_s, rel=1e-9)
        assert estimate.broadcast_s == pytest.approx(price.broadcast_s, rel=1e-9)
        assert sorted(estimate.peak_bytes) == pytest.approx(sorted(price.peak_bytes), rel=1e-9)
        assert estimate.sync_s == pytest.approx(price.sync_s, rel=2e-3)  # latencies by layer


@pytest.mark.parametrize("name", RULES)
def test_the_evaluators_price_changes_with_every_rule(answers, name):
    now, before = ([both and both[1] for both in answers[which]] for which in (name, ""))
    assert now != before
