"""The estimator's price of a plan, against the evaluator where the placement leaves no choice."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest

from benchmarks.placing import fastest
from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.fill.filling import fill_template
from planner.estimator.fill.stage import fixed_seconds
from planner.estimator.gradient_sync import sync_seconds
from planner.estimator.sharing import pipeline_seconds
from planner.estimator.top_k import load_top
from planner.estimator.unplaced_plan import new_plan
from planner.estimator.whole_plan import (
    by_replica_seconds,
    by_stage_seconds,
    iteration_seconds,
    price_per_hour,
)
from planner.estimator.workspace import new_workspace
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.placement.place import place
from planner.plans.plan import Plan
from planner.profiles.generator import find_profile
from planner.search.candidate import Evaluator
from planner.search.unplaced_candidates import unplaced_candidate_of
from tests.builders import demo_profile, nodes, workload

SOME = 6  # of the plans found


def test_the_price_is_the_evaluators_where_every_gpu_has_a_node_of_its_own(walked_alone):
    evaluator, _, searcher = walked_alone
    assert searcher.found > 10
    for value, candidate in islice(searcher.unplaced_candidates(), SOME):
        assert fastest(evaluator, candidate).cost.iteration_s == pytest.approx(value, rel=1e-9)


def test_a_limit_only_tells_sooner_what_is_above_it(walked_alone):
    _, pricing, searcher = walked_alone
    tables = pricing.tables
    unplaced, work = new_plan(), new_workspace(tables)
    for row in range(SOME):
        load_top(searcher.top_k, row, unplaced)
        seconds = iteration_seconds(tables, unplaced, work, math.inf)
        assert seconds == pytest.approx(float(searcher.top_k.value[row]), rel=1e-12)
        assert iteration_seconds(tables, unplaced, work, seconds) == seconds
        for share in (0.5, 0.99, 1 - 1e-9):
            assert iteration_seconds(tables, unplaced, work, share * seconds) == math.inf


FEW_SAMPLES = Workload(
    model=find_model("llama3-8b"), global_batch=512, sequence_length=4096
)  # so that gradient sums weigh
EVEN = "h100=16x8"
NODE = 8


def messages(
    tps: tuple[int, ...],
    kinds: tuple[int, ...] | None = None,
    gpus: int = 2,
    copies: tuple[int, ...] = (1, 8),
):
    """Seconds that stages wait for messages, for each number of copies beside each other.

    They are of one type unless kinds are given, on nodes of so many GPUs.  A message takes 1 s
    inside a node, 4 s between nodes, and 1 s more for every GPU that sends besides.
    """
    depth = len(tps)
    kinds = kinds or (0,) * depth
    types = max(kinds) + 1
    pricing = pricing_of(workload(), nodes("fast-0:2"), demo_profile())
    assert pricing is not None
    tables = pricing.tables._replace(
        option_type=np.array(kinds),
        option_tp=np.array(tps),
        node_gpus=np.full(types, gpus),
        ends_s=np.zeros((depth, 1, 2)),
        port_s=np.tile(3.0 + np.arange(gpus + 1), (depth, 1, 1)),
        inside_s=np.full((types, 1), 1.0),
    )
    found = []
    for number in copies:
        out = np.zeros(depth)
        fixed_seconds(tables, np.arange(depth), depth, 0, number, tables.node_gpus, out)
        found.append(out.tolist())
    return tuple(found)


def test_a_stage_waits_longer_for_neighbours_that_were_on_its_node():
    assert messages((1, 1)) == ([1.0, 1.0], [5.0, 5.0])
    assert messages((1, 1, 1, 1)) == ([1.0, 5.0, 5.0, 1.0], [5.0, 10.0, 10.0, 5.0])


def test_a_stage_between_two_neighbours_waits_for_both():
    assert messages((1, 1, 1), gpus=4) == ([1.0, 2.0, 1.0], [7.0, 14.0, 7.0])


def test_runs_beside_each_other_share_the_network_card_of_their_node():
    alone, _ = messages((2, 2, 2, 2), gpus=4)
    beside, _ = messages((1, 1, 1, 1), (0, 0, 1, 1), gpus=4)
    assert alone == [1.0, 6.0, 6.0, 1.0]  # one stage of two GPUs sends
    assert beside == [1.0, 6.0, 6.0, 1.0]  # two stages of one GPU each


def test_stages_share_a_node_that_has_room_for_the_copies_of_both():
    both, two, one = messages((1, 1, 1, 1), gpus=4, copies=(1, 2, 4))
    assert both == [1.0, 2.0, 2.0, 1.0]  # a node has a replica
    assert two == [1.0, 6.0, 6.0, 1.0]  # two replicas cross in their middle, of two GPUs each
    assert one == [7.0, 14.0, 14.0, 7.0]  # a node has one stage of four replicas


def test_other_stages_send_from_the_rest_that_copies_leave_of_a_node():
    (three,) = messages((1, 1), gpus=4, copies=(3,))
    assert three == [7.0, 7.0]  # all four GPUs send


@pytest.mark.parametrize(("tps", "kinds"), [((1,), None), ((2, 2), None), ((1, 1), (0, 1))])
def test_where_no_stage_has_a_neighbour_on_its_node_nothing_is_added(tps, kinds):
    with_neighbours, by_stage = messages(tps, kinds)
    assert by_stage == with_neighbours


@pytest.fixture(scope="module")
def placed(walked_on):
    """(tables, unplaced, price by stage, estimate) of plans whose stages fill nodes."""
    walked = walked_on(FEW_SAMPLES, EVEN, steps=20_000, templates=2)
    evaluator, pricing, searcher = walked
    assert pricing.tables.both_ways
    found = []
    for row in range(searcher.found):
        unplaced = new_plan()
        load_top(searcher.top_k, row, unplaced)
        stages = [
            int(unplaced.replicas[k] * pricing.tables.option_tp[option])
            for k in range(unplaced.number[0])
            for option in unplaced.options[k, : unplaced.depth[k]]
        ]
        if any(gpus % NODE for gpus in stages):
            continue
        candidate = walked.candidate(row)
        plan = fastest(evaluator, candidate).plan
        where = place(FEW_SAMPLES.model, plan.templates, evaluator.composition, rule="by stage")
        price = evaluator.priced(candidate, Plan(plan.templates, where)).cost
        is_by_stage = all(filling.by_stage for _, _, filling in candidate)
        found.append((unplaced, price, float(searcher.top_k.value[row]), is_by_stage))
    assert len(found) > 3
    return pricing.tables, found


def test_pipelines_take_as_long_as_those_of_the_placed_plan(placed):
    tables, found = placed
    work = new_workspace(tables)
    longer = 0
    for unplaced, price, _, _ in found:
        seconds = by_stage_seconds(tables, unplaced, work, math.inf)
        pipelines_s = price.iteration_s - price.sync_s - price.optimizer_s
        assert seconds == pytest.approx(pipelines_s, rel=1e-9)
        longer += seconds > pipeline_seconds(tables, unplaced)
    assert longer


def test_gradient_sums_are_those_of_the_placed_plan(placed):
    tables, found = placed
    work = new_workspace(tables)
    for unplaced, price, _, _ in found:
        summed_s = sync_seconds(tables, unplaced, work, is_by_stage=True)
        assert summed_s == pytest.approx(price.sync_s, rel=1e-3)


def test_a_plan_that_is_better_so_has_the_price_of_the_placed_one(placed):
    _, found = placed
    better = [(value, price) for _, price, value, is_by_stage in found if is_by_stage]
    assert better
    for value, price in better:
        # sums count latencies by layer: the evaluator, by message
        assert value == pytest.approx(price.iteration_s, abs=1e-3 * price.sync_s)


def test_no_plan_takes_longer_in_the_estimator_than_placed_so(placed):
    _, found = placed
    assert all(value <= price.iteration_s + 1e-3 * price.sync_s for _, price, value, _ in found)


def test_a_limit_tells_sooner_that_stages_of_many_replicas_take_too_long(placed):
    tables, found = placed
    work = new_workspace(tables)
    for unplaced, _, _, _ in found:
        seconds = by_stage_seconds(tables, unplaced, work, math.inf)
        assert by_stage_seconds(tables, unplaced, work, seconds * (1 + 1e-9)) == seconds
        assert by_stage_seconds(tables, unplaced, work, seconds * (1 - 1e-6)) == math.inf


CUT = "h100=3x8"  # three nodes hold three runs of five stages, and a fourth in two pieces


@pytest.mark.parametrize(
    ("templates", "is_cut"), [([(5, 3)], False), ([(5, 4)], True), ([(7, 2), (5, 2)], True)]
)
def test_messages_between_the_pieces_of_a_run_cross_nodes(templates, is_cut):
    """Templates are (stages of one GPU, replicas)."""
    asked, composition = FEW_SAMPLES, Composition.from_text(CUT)
    profile = find_profile(asked)
    pricing = pricing_of(asked, composition, profile)
    tables, unplaced = pricing.tables._replace(both_ways=0), new_plan()
    assert tables.option_tp[0] == 1
    unplaced.number[0] = len(templates)
    for k, (depth, replicas) in enumerate(templates):
        unplaced.depth[k], unplaced.replicas[k] = depth, replicas
    work = new_workspace(tables)
    for k in range(len(templates)):
        fill_template(tables, unplaced, k, int(unplaced.replicas.sum()), 1, work)
    estimated_s = iteration_seconds(tables, unplaced, work, math.inf)
    whole_s = float(work.pipelines_s[0])
    seconds = by_replica_seconds(tables, unplaced, work, whole_s, math.inf)
    assert (seconds > whole_s) == is_cut
    assert is_cut or seconds == whole_s
    for limit_s, expected_s in ((seconds * (1 + 1e-9), seconds), (seconds * (1 - 1e-6), math.inf)):
        found_s = by_replica_seconds(tables, unplaced, work, whole_s, limit_s)
        assert found_s == (expected_s if is_cut else whole_s)
    evaluator = Evaluator(workload=asked, composition=composition, profile=profile)
    for k in range(len(templates)):  # with the fillings that were chosen
        copy_filling(unplaced, k)
    candidate = unplaced_candidate_of(pricing, unplaced, work)
    plan = fastest(evaluator, candidate).plan
    where = place(asked.model, plan.templates, composition, rule="by replica")
    price = evaluator.priced(candidate, Plan(plan.templates, where)).cost
    placed_s = price.iteration_s - price.sync_s - price.optimizer_s
    assert (whole_s < placed_s) == is_cut
    assert placed_s <= seconds * (1 + 1e-9)
    assert seconds == pytest.approx(placed_s, rel=0.005)
    assert estimated_s >= seconds


def copy_filling(plan, k: int) -> None:
    """Give a slot the filling that its price took, as its only one."""
    f = int(plan.chosen[k])
    for rows in (plan.size, plan.most, plan.tau_s, plan.sum_s, plan.blocks):
        rows[k, 0] = rows[k, f]
    plan.filling_count[k, 0], plan.chosen[k] = 1, 0


@pytest.mark.parametrize(
    ("text", "model"),
    [("h100=16x1", "llama3-8b"), (EVEN, "mixtral-8x7b")],
)
def test_one_way_is_thought_of_where_plans_are_placed_one_way(text, model):
    workload = Workload(model=find_model(model), global_batch=512, sequence_length=4096)
    pricing = pricing_of(workload, Composition.from_text(text), find_profile(workload))
    assert not pricing.tables.both_ways


def money(stages: str, gpus: int, paid_gpus: int = 0) -> float:
    """Price of templates `replicas x TP` on nodes of so many GPUs, with 1 for each GPU."""
    pricing = pricing_of(workload(), nodes("fast-0:2"), demo_profile())
    assert pricing is not None
    degrees, plan = [1, 2, 4], new_plan()
    tables = pricing.tables._replace(
        option_type=np.zeros(len(degrees), np.int64),
        option_tp=np.array(degrees),
        node_gpus=np.array([gpus]),
        paid_gpus=np.array([paid_gpus or gpus]),
        gpu_price=np.ones(1),
    )
    for k, row in enumerate(stages.split()):
        replicas, tp = map(int, row.split("x"))
        plan.number[0], plan.depth[k], plan.replicas[k] = k + 1, 1, replicas
        plan.options[k, 0] = degrees.index(tp)
    return price_per_hour(tables, plan)


@pytest.mark.parametrize(
    ("stages", "gpus", "expected"),
    [
        ("5x4", 5, 5),  # a node has room for one group
        ("5x4 5x1", 5, 5),  # and for a GPU beside it
        ("5x4 1x2", 5, 6),
        ("4x2", 5, 2),
        ("1x4 3x2", 7, 2),
        ("4x2 1x1", 3, 4),
        ("3x4 3x2", 8, 3),
    ],
)
def test_a_plan_pays_for_the_nodes_that_its_tp_groups_need(stages, gpus, expected):
    assert money(stages, gpus) == expected * gpus


def test_hosts_of_a_node_are_paid_together():
    assert money("1x2", 2, paid_gpus=6) == 6
    assert money("3x2", 2, paid_gpus=6) == 6
    assert money("4x2", 2, paid_gpus=6) == 12
