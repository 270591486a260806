"""How stages spread experts, against the tilings of the unplaced candidates that come of them."""

from __future__ import annotations

from itertools import accumulate

import pytest

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.fill.stage_experts import look_at_experts
from planner.estimator.top_k import load_top
from planner.estimator.unplaced_plan import new_plan
from planner.estimator.workspace import new_workspace
from planner.model.catalogue import find_model
from planner.model.tensors import expert_numel
from planner.model.workload import Workload
from planner.profiles.generator import find_profile


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "deepseek-v3-like"])
def test_every_stage_is_tiled_as_its_recipe_says(model, walked_on):
    workload = Workload(
        model=find_model(model),
        global_batch=512,
        sequence_length=2048,
        precision="fp16",
        recompute="full",
    )
    text = "h100=64x4" if model == "deepseek-v3-like" else "a100-80=8x2,h100=8x2"
    walked = walked_on(workload, text)
    _, pricing, searcher = walked
    plan, experts = new_plan(), new_workspace(pricing.tables)
    for row in range(min(8, searcher.found)):
        load_top(searcher.top_k, row, plan)
        look_at_experts(pricing.tables, plan, experts)
        told = sorted(_told(pricing, plan, experts))
        assert told == sorted(_asked(workload.model, walked.candidate(row)))


def test_a_model_without_experts_is_not_looked_at():
    workload = Workload(
        model=find_model("llama3-8b"), global_batch=512, sequence_length=2048, precision="fp16"
    )
    pricing = pricing_of(workload, Composition.from_text("h100=2x8"), find_profile(workload))
    plan, experts = new_plan(), new_workspace(pricing.tables)
    plan.number[0] = plan.depth[0] = 1
    experts.ways[:] = -1
    look_at_experts(pricing.tables, plan, experts)
    assert (experts.ways == -1).all()


def _told(pricing, plan, experts):
    """(n, stages, blocks, ways, elements) of each template, as the estimator has it."""
    for k in range(int(plan.number[0])):
        depth = int(plan.depth[k])
        yield (
            int(plan.replicas[k]),
            tuple(pricing.options[option] for option in plan.options[k, :depth]),
            tuple(plan.blocks[k, plan.chosen[k], :depth].tolist()),
            tuple(experts.ways[k, :depth].tolist()),
            tuple(experts.numel[k, :depth].tolist()),
        )


def _asked(model, candidate):
    """The same of a candidate."""
    dense = model.experts.dense_blocks
    for structure, replicas, filling in candidate:
        ways = tuple(
            ep * (etp or tp)
            for (_, tp), (_, ep, etp) in zip(structure, filling.stage_configs, strict=True)
        )
        numel = tuple(
            float(expert_numel(model) // cut if stop > dense else 0)
            for cut, stop in zip(ways, accumulate(filling.layers), strict=True)
        )
        yield replicas, structure, filling.layers, ways, numel
