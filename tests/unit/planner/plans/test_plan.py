"""Plans: JSON both ways, and every fault named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from planner.errors import InvalidPlan
from planner.model.experts import Experts
from planner.plans.plan import FilledTemplate, Plan, Stage, check, faults
from tests.builders import MODEL, compositions, nodes, on_one_node, plans_on, template, workload
from tests.refusals import refused

PLAN = on_one_node(template("2x4 1x2", 2, (3, 2)), template("1x3 1x3", 1, (6,)))


@given(compositions().flatmap(plans_on))
def test_json_reads_back_to_an_equal_plan(plan):
    data = json.loads(json.dumps(plan.to_json()))
    assert Plan.from_json(data) == plan
    assert Plan.from_json({**data, "throughput_samples_s": 1.0}).digest == plan.digest


def test_counts_follow_from_the_templates():
    assert (PLAN.gpus, PLAN.nodes, PLAN.tp_degrees) == (8, ("fast-0",), {1, 2})
    assert sum(row.samples for row in PLAN.templates) == 16
    assert PLAN.templates[0].layer_bounds() == (0, 5, 8)
    assert PLAN.templates[1].layer_bounds() == (0, 4, 8)


def test_a_good_plan_has_no_fault():
    assert check(PLAN, workload(16), nodes("fast-0:8")) is PLAN


@pytest.mark.parametrize(
    ("plan", "text", "batch", "sentence"),
    [
        (PLAN, "fast-0:8", 15, "train 16 samples a step, the global batch is 15"),
        (PLAN, "fast-0:7", 16, "of node 'fast-0', a demo-fast x 7"),
        (PLAN, "fast-1:8", 16, "'fast-0', which is not in the composition"),
        (on_one_node(template("1x5", 1, (4,))), "fast-0:1", 4, "holds 5 layers"),
        (on_one_node(template("1x6 1x0", 1, (4,))), "fast-0:2", 4, "stage without layers"),
        (on_one_node(template("3x6", 1, (4,))), "fast-0:3", 4, "TP 3, which does not divide"),
        (on_one_node(template("1x6", 1, (0,))), "fast-0:1", 0 + 1, "at least 1"),
        (Plan((), ()), "fast-0:1", 1, "no template"),
        (replace(PLAN, placement=PLAN.placement[1:]), "fast-0:8", 16, "does not list every"),
    ],
)
def test_every_fault_is_named(plan, text, batch, sentence):
    assert any(sentence in fault for fault in faults(plan, workload(batch), nodes(text)))
    with refused(InvalidPlan, "Unsupported"):
        check(plan, workload(batch), nodes(text))


def test_an_error_names_three_faults_and_counts_the_others():
    plan = on_one_node(template("1x6", 1, (1,) * 9))
    found = faults(plan, workload(9), nodes("fast-1:9"))
    assert len(found) == 9
    with refused(InvalidPlan, "Unsupported") as caught:
        check(plan, workload(9), nodes("fast-1:9"))
    assert str(caught.value).endswith(" and 6 more")
    assert str(caught.value).count("not in the composition") == 3


def test_a_template_says_how_its_experts_are_divided_where_they_are():
    plain, spread = (Stage(gpu_type="a", tp=2, layers=3, ep=ep, etp=1) for ep in (1, 4))
    cut = Stage(gpu_type="a", tp=2, layers=3)
    said = FilledTemplate((spread, plain, cut), 1, (2, 2))
    assert str(said) == "2 x [a tp2 ep4 etp1 x 3 > a tp2 ep1 etp1 x 3 > a tp2 x 3] b=1"


def test_blocks_without_experts_are_not_tiled():
    experts = Experts(count=4, per_token=2, ffn=MODEL.ffn, dense_blocks=2)
    moe = replace(workload(4), model=replace(MODEL, experts=experts))
    for tiled, dense, is_fault in ((0, 2, True), (0, 3, False), (1, 2, False)):
        plan = on_one_node(template(f"1x{dense} 1x{MODEL.layers - dense}", 2, (2, 2)))
        (row,) = plan.templates
        stages = list(row.stages)
        stages[tiled] = replace(stages[tiled], ep=2, etp=1)
        tiling = replace(plan, templates=(replace(row, stages=tuple(stages)),))
        found = faults(tiling, moe, nodes("fast-0:4"))
        assert (
            any("the first 2 blocks of tiny-llama have no experts" in f for f in found) is is_fault
        )


def test_a_gpu_given_twice_is_a_fault():
    first, *rest = PLAN.placement
    doubled = replace(PLAN, placement=(first, replace(rest[0], gpus=first.gpus[:1]), *rest[1:]))
    assert any("given twice" in fault for fault in faults(doubled, workload(16)))


def test_a_misspelt_key_is_refused_and_one_of_other_programs_is_not():
    data = json.loads(json.dumps(PLAN.to_json())) | {"digest": None}
    stage = data["templates"][0]["stages"][0]
    stage |= {"stage_s": 0.5, "peak_memory_bytes": 7, "tiling": None, "comment": "ours"}
    assert Plan.from_json(data) == PLAN
    with refused(InvalidPlan, "Unknown", "recomputed"):
        Plan.from_json(data | {"templates": with_key(data, "stages", "recomputed")})
    with refused(InvalidPlan, "Unknown", "zeros"):
        Plan.from_json(data | {"templates": with_key(data, "", "zeros")})


def with_key(data, of, key):
    templates = json.loads(json.dumps(data["templates"]))
    (templates[0][of][0] if of else templates[0])[key] = 1
    return templates


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("templates"),
        lambda data: data["templates"][0].pop("stages"),
        lambda data: data["placement"][0].update(gpus=None),
        lambda data: data["templates"][0].update(micro_batch="x"),
        lambda data: data.update(digest="0" * 16),
    ],
)
def test_json_that_is_no_plan_or_lies_is_one_sentence(change):
    data = json.loads(json.dumps(PLAN.to_json()))
    change(data)
    with pytest.raises(InvalidPlan):
        Plan.from_json(data)
