"""The estimator's gradient sums against the evaluator's, of plans that are really placed."""

from __future__ import annotations

import pytest

from benchmarks.placing import fastest
from planner.estimator.fill.stage_experts import look_at_experts
from planner.estimator.gradient_sync import broadcast_seconds, sync_seconds
from planner.estimator.top_k import load_top
from planner.estimator.unplaced_plan import new_plan
from planner.estimator.workspace import new_workspace
from planner.model.catalogue import find_model
from planner.model.workload import Workload

ALONE = "a100-40=9x1,h100=7x1,a6000=6x1"  # every message crosses, every GPU has a NIC
SINGLES = "a100-80=16x1,a100-40=24x1"
PAIRS = "a100-80=16x2,h100=8x2"  # where experts are spread, a stage of two replicas fills a node
SOME = 6  # of the plans found


def asked(model: str, zero: int = 0) -> Workload:
    return Workload(
        model=find_model(model),
        global_batch=512,
        sequence_length=2048,
        precision="fp16",
        zero=zero,
        memory="paper",
    )


@pytest.mark.parametrize("model", ["llama3-8b", "gpt-neo-2.7b"])
def test_gradient_sums_are_the_evaluators_where_every_gpu_has_a_node_of_its_own(model, walked_on):
    walked = walked_on(asked(model), ALONE)
    evaluator, pricing, searcher = walked
    plan, work = new_plan(), new_workspace(pricing.tables)
    for row in range(SOME):
        load_top(searcher.top_k, row, plan)
        seconds = fastest(evaluator, walked.candidate(row)).cost.sync_s
        look_at_experts(pricing.tables, plan, work)
        summed_s = sync_seconds(pricing.tables, plan, work, is_by_stage=False)
        assert summed_s == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b-a3b"])
def test_broadcasts_are_the_evaluators_where_every_gpu_has_a_node_of_its_own(model, walked_on):
    walked = walked_on(asked(model, zero=1), ALONE if model == "llama3-8b" else SINGLES)
    evaluator, pricing, searcher = walked
    plan, work = new_plan(), new_workspace(pricing.tables)
    found = []
    for row in range(SOME):
        load_top(searcher.top_k, row, plan)
        found.append(fastest(evaluator, walked.candidate(row)).cost.broadcast_s)
        look_at_experts(pricing.tables, plan, work)
        is_by_stage = pricing.tables.spreads_experts == 1
        sync_seconds(pricing.tables, plan, work, is_by_stage)
        sent_s = broadcast_seconds(pricing.tables, plan, work, is_by_stage)
        assert sent_s == pytest.approx(found[-1], rel=1e-9)
    assert any(found)


@pytest.mark.parametrize(
    ("model", "text", "nearly"),
    [
        # the evaluator counts a latency for each message, of which a rank has two more at most
        ("qwen3-30b-a3b", SINGLES, 1e-4),
        ("mixtral-8x7b", SINGLES, 1e-4),
        ("qwen3-30b-a3b", PAIRS, 0.01),
        ("mixtral-8x7b", PAIRS, 0.01),
    ],
)
def test_what_plans_that_spread_experts_take_is_known_before_they_are_placed(
    model, text, nearly, walked_on
):
    walked = walked_on(asked(model), text)
    evaluator, _, searcher = walked
    tiled = 0
    for row in range(SOME):
        candidate = walked.candidate(row)
        tiled += sum(ep > 1 for _, _, filling in candidate for _, ep, _ in filling.stage_configs)
        seconds = fastest(evaluator, candidate).cost.iteration_s
        assert float(searcher.top_k.value[row]) == pytest.approx(seconds, rel=nearly)
    assert tiled
