"""Search: sound, deterministic, never worse than what runs, right where all plans can be tried."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations_with_replacement, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cluster.composition import Composition, Node
from planner.cost.evaluate import cost_of
from planner.cost.memory import StageSlot, fits
from planner.errors import Infeasible
from planner.model.catalogue import find_model
from planner.placement.place import can_pack, room_of
from planner.plans.pieces import holders_min
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage, faults
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.driver import search
from tests.builders import MODEL, compositions, demo_profile, nodes, work_on, workload

FEW = 300  # evaluations: these laws hold for any budget


def ask(composition: Composition, **limits):
    """The answer, or None where no plan fits."""
    limits = {"budget_evaluations": FEW, **limits}
    batch = limits.pop("batch", 32)
    try:
        return search(
            PlanRequest(workload=workload(batch), composition=composition, **limits), demo_profile()
        )
    except Infeasible:
        return None


@pytest.mark.slow
@settings(max_examples=15)
@given(compositions(most_nodes=3, most_gpus=3), st.integers(1, 40), st.integers(1, 2))
def test_an_answer_can_run_and_its_price_is_the_price(composition, batch, min_holders):
    answer = ask(composition, batch=batch, min_holders=min_holders)
    if answer is None:
        return
    assert faults(answer.plan, workload(batch), composition) == ()
    assert answer.cost == cost_of(answer.plan, workload(batch), composition, demo_profile())
    assert answer.holders_min == holders_min(MODEL, answer.plan)
    for replica in answer.cost.replicas:
        for stage, priced in zip(
            answer.plan.templates[replica.template].stages, replica.stages, strict=True
        ):
            usable = demo_profile().gpu_type(stage.gpu_type).usable_bytes
            assert priced.peak_memory_bytes <= usable
    assert sum(count for _, count in answer.idle) == composition.gpus - answer.plan.gpus


@pytest.mark.slow
@settings(max_examples=10)
@given(compositions(most_nodes=3, most_gpus=3), st.integers(0, 3))
def test_equal_requests_get_equal_plans(composition, seed):
    one, other = ask(composition, seed=seed), ask(composition, seed=seed)
    assert (one is None) == (other is None)
    assert one is None or one.plan.digest == other.plan.digest


@pytest.mark.slow
@settings(max_examples=15)
@given(
    compositions(most_nodes=2, most_gpus=3),
    st.sampled_from(["demo-fast", "demo-slow"]),
    st.integers(1, 3),
)
def test_throughput_never_falls_when_the_cluster_grows(composition, gpu_type, gpus):
    before = ask(composition)
    if before is None:
        return
    grown = Composition((*composition.nodes, Node(name="new", gpu_type=gpu_type, gpus=gpus)))
    for evaluations in (1, FEW):  # even where the search hardly looks
        after = ask(grown, current=before.plan, budget_evaluations=evaluations)
        assert after.cost.iteration_s <= before.cost.iteration_s * (1 + 1e-12)


LARGE = work_on("llama3-8b", 512, precision="fp16", memory="paper")
SOME = (
    "h100=2x4,a100-40=3x2",  # few GPUs: placed and priced exactly
    "h100=4x4,a100-40=6x4",
    "h100=3x8+5x4+8x2",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "method"),
    [(SOME[0], "auto"), (SOME[1], "search"), (SOME[1], "columns"), (SOME[2], "auto")],
)
def test_plans_are_kept_to_and_with_more_the_answer_is_never_worse(text, method):
    profile, best_s = find_profile(LARGE), [float("inf")]
    for budget in (1, 30, 333, 800, 3000):
        request = PlanRequest(
            workload=LARGE,
            composition=Composition.from_text(text),
            method=method,
            budget_evaluations=budget,
        )
        answer = search(request, profile)
        best_s.append(answer.cost.iteration_s)
        assert best_s[-1] <= best_s[-2]
        priced = answer.search_steps[-1].evaluations
        assert priced <= budget or priced < 100  # until there is a plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "method", "min_holders", "budgets"),
    [
        ("h100=2x4+2x1,a6000=1x1", "auto", 2, (3, 250, 450, 1200)),
        ("h100=1x8,a100-40=3x1", "columns", 2, (1, 60, 333, 1200)),
        ("a100-80=1x2,h100=1x8", "auto", 1, (100, 450, 1700)),
    ],
)
def test_on_few_gpus_a_search_of_more_plans_keeps_what_a_shorter_one_placed(
    text, method, min_holders, budgets
):
    work = replace(LARGE, model=find_model("qwen3-30b-a3b"))
    ranks = []
    for budget in budgets:
        request = PlanRequest(
            workload=work,
            composition=Composition.from_text(text),
            method=method,
            min_holders=min_holders,
            budget_evaluations=budget,
        )
        answer = search(request, find_profile(work))
        ranks.append((-min(answer.holders_min, min_holders), answer.cost.iteration_s))
    assert ranks == sorted(ranks, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("text", SOME)
def test_in_seconds_the_answer_is_never_below_uniform_plans_and_those_of_the_policy(text):
    request = PlanRequest(
        workload=LARGE,
        composition=Composition.from_text(text),
        budget_s=0.2,
        budget_evaluations=None,
    )
    answer = search(request, find_profile(LARGE))
    reached = [one.throughput_samples_s for one in answer.search_steps]
    methods = {one.method for one in answer.search_steps}
    assert {"uniform", "policy"} <= methods  # a busy machine may leave the policy no time
    assert reached == sorted(reached)
    assert 0 < reached[-1] == answer.throughput_samples_s


@pytest.mark.slow
@settings(max_examples=10)
@given(compositions(most_nodes=3, most_gpus=3), st.randoms(use_true_random=False))
def test_node_names_do_not_change_the_throughput(composition, random):
    names = [node.name for node in composition.nodes]
    random.shuffle(names)
    renamed = Composition(
        tuple(
            Node(name=name, gpu_type=node.gpu_type, gpus=node.gpus)
            for name, node in zip(names, composition.nodes, strict=True)
        )
    )
    one, other = ask(composition, min_holders=2), ask(renamed, min_holders=2)
    assert (one is None) == (other is None)
    if one is not None:
        assert one.throughput_samples_s == pytest.approx(other.throughput_samples_s, rel=1e-9)


def every_template(composition: Composition):
    """Each (stages, b) that holds the model, whatever M."""
    options = sorted({(n.gpu_type, tp) for n in composition.nodes for tp in (1, 2, 4)})
    for depth in range(1, composition.gpus + 1):
        for chosen in product(options, repeat=depth):
            if not can_pack(Counter(chosen), room_of(composition)):
                continue
            for layers in product(range(1, MODEL.layers + 1), repeat=depth):
                if sum(layers) == MODEL.layers:
                    stages = tuple(
                        Stage(gpu_type=kind, tp=tp, layers=n)
                        for (kind, tp), n in zip(chosen, layers, strict=True)
                    )
                    yield from ((stages, b) for b in (1, 2, 4, 8, 16))


def every_plan(composition: Composition, batch: int):
    """Every plan of at most two pipelines, with every share and every placement by node."""
    single = [row for row in every_template(composition) if held(*row, 1)]
    for pipelines in (1, 2):
        for chosen in combinations_with_replacement(single, pipelines):
            groups = Counter((s.gpu_type, s.tp) for stages, _ in chosen for s in stages)
            if not can_pack(groups, room_of(composition)):
                continue
            for counts in product(range(1, batch + 1), repeat=pipelines):
                if sum(m * b for m, (_, b) in zip(counts, chosen, strict=True)) != batch:
                    continue
                if all(held(stages, b, m) for (stages, b), m in zip(chosen, counts, strict=True)):
                    templates = tuple(
                        FilledTemplate(stages, b, (m,))
                        for (stages, b), m in zip(chosen, counts, strict=True)
                    )
                    yield from every_placement(templates, composition)


def held(stages, b: int, m: int) -> bool:
    return all(
        fits(
            workload(),
            demo_profile(),
            StageSlot(
                gpu_type=stage.gpu_type,
                tp=stage.tp,
                micro_batch=b,
                micro_batches=m,
                depth=len(stages),
                index=index,
            ),
            stage.layers,
        )
        for index, stage in enumerate(stages)
    )


def every_placement(templates, composition: Composition):
    slots = [(t, 0, s) for t, row in enumerate(templates) for s in range(len(row.stages))]
    for chosen in product(composition.nodes, repeat=len(slots)):
        free = {node.name: list(range(node.gpus)) for node in composition.nodes}
        where = []
        for (t, r, s), node in zip(slots, chosen, strict=True):
            stage = templates[t].stages[s]
            gpus = tuple(free[node.name][: stage.tp])
            if node.gpu_type != stage.gpu_type or len(gpus) < stage.tp:
                break
            del free[node.name][: stage.tp]
            where.append(PlacedStage(t, r, s, node.name, gpus))
        else:
            yield Plan(templates, tuple(where))


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("fast-0:2", 8),
        ("fast-0:3", 8),
        ("fast-0:1 fast-1:1", 6),
        ("fast-0:1 slow-0:2", 8),
        ("fast-0:2 slow-0:1", 5),
        pytest.param("fast-0:2 fast-1:2", 4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("min_holders", [1, 2])
def test_tiny_compositions_agree_with_brute_force(text, batch, min_holders):
    composition = nodes(text)
    best = min(
        (-min(holders_min(MODEL, plan), min_holders), iteration_s)
        for plan in every_plan(composition, batch)
        for iteration_s in [cost_of(plan, workload(batch), composition, demo_profile()).iteration_s]
    )
    answer = ask(composition, batch=batch, min_holders=min_holders, budget_evaluations=2000)
    found = (-min(answer.holders_min, min_holders), answer.cost.iteration_s)
    assert found == (best[0], pytest.approx(best[1], rel=1e-9))


def test_stage_order_is_searched():
    """The slow GPU could stand first or last: the answer is the better of both."""
    composition = nodes("fast-0:1 slow-0:1")
    answer = ask(composition)
    stages = answer.plan.templates[0].stages
    assert len(stages) == 2
    for order in permutations(stages):
        row = FilledTemplate(
            order, answer.plan.templates[0].micro_batch, answer.plan.templates[0].micro_batches
        )
        for plan in every_placement((row,), composition):
            priced = cost_of(plan, workload(), composition, demo_profile())
            assert priced.iteration_s >= answer.cost.iteration_s - 1e-12 or not all(
                held(order, row.micro_batch, m) for m in row.micro_batches
            )
