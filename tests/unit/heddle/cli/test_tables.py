"""Plans and prices as text."""

from __future__ import annotations

from dataclasses import replace

from heddle.cli.tables import (
    aligned,
    answer_sentences,
    cost_sentence,
    cost_table,
    diff_table,
    memory_table,
    network_sentence,
    plan_table,
)
from planner.cluster.composition import Composition
from planner.cluster.gpu_limits import GpuLimits
from planner.cost.evaluate import cost_of
from planner.cost.memory import usable_bytes
from planner.cost.money import with_prices
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.plans.diff import compare
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.profiles.generator import find_profile
from planner.request import MarginalGain, PlanRequest, SearchStep
from planner.search.driver import search
from tests.builders import demo_profile, nodes, on_one_node, template, workload


def test_columns_line_up():
    assert aligned(("a", "b"), [("long", "x"), ("s", "y")]) == "a     b\nlong  x\ns     y"


def test_a_plan_has_one_row_per_stage_and_a_price_one_per_replica_and_stage():
    plan = on_one_node(template("1x3 1x3", 2, (3, 2)), template("2x6", 2, (1,)))
    priced = cost_of(plan, workload(12), nodes("fast-0:6"), demo_profile())
    rows = plan_table(plan, priced).splitlines()
    assert len(rows) == 1 + 3
    assert "fast-0:0 fast-0:2" in rows[1]
    assert len(cost_table(plan, priced).splitlines()) == 1 + 5
    assert len(memory_table(plan, priced, demo_profile(), workload(12)).splitlines()) == 1 + 5


def test_a_fast_network_card_is_no_power_of_ten():
    llama = Workload(
        model=find_model("llama3-8b"), global_batch=64, sequence_length=2048, precision="fp16"
    )
    composition = Composition.from_text("h100=1x8,t4=1x4")
    said = network_sentence(composition, find_profile(llama))
    assert said.endswith(": h100 1,440 Gbit/s, t4 44.8 Gbit/s")


def test_replicas_that_cost_the_same_share_their_rows():
    plan = on_one_node(template("1x3 1x3", 2, (3, 3)))
    priced = cost_of(plan, workload(12), nodes("fast-0:4"), demo_profile())
    rows = cost_table(plan, priced).splitlines()
    assert len(rows) == 1 + 2
    assert "2 x 3" in rows[1]


def test_tiling_and_recomputation_have_columns_where_there_is_some():
    plan = on_one_node(template("1x3 1x3", 2, (6,)))
    priced = cost_of(plan, workload(12), nodes("fast-0:2"), demo_profile())
    assert "recompute" not in plan_table(plan, priced)
    assert "EP x ETP" not in plan_table(plan, priced)
    first, last = plan.templates[0].stages
    stages = (replace(first, recompute="full"), replace(last, ep=4, etp=1))
    other = replace(plan, templates=(replace(plan.templates[0], stages=stages),))
    head, one, two = plan_table(other, priced).splitlines()
    assert "EP x ETP" in head
    assert "full" in one
    assert "4 x 1" in two


def test_a_table_of_many_replicas_stays_readable():
    plan = on_one_node(template("1x6", 2, (3, 3, 3, 2, 2, 2)))
    priced = cost_of(plan, workload(30), nodes("fast-0:6"), demo_profile())
    row = plan_table(plan, priced).splitlines()[1]
    assert "2 x 2-3" in row
    assert row.endswith("fast-0:0 fast-0:1 fast-0:2 and 3 more")


def test_a_sentence_says_which_numbers_are_modelled_and_how_edges_count():
    plan = on_one_node(template("1x6", 2, (6,)))
    priced = cost_of(plan, workload(12), nodes("fast-0:1"), demo_profile())
    text = cost_sentence(priced, 1.0, demo_profile(), placed=False)
    assert "profile modelled, links modelled; edges inside a node count as crossing nodes" in text


def test_a_stage_over_its_memory_is_marked():
    plan = on_one_node(template("1x6", 16, (2,)))
    priced = cost_of(plan, workload(32), nodes("fast-0:1"), demo_profile())
    assert "DOES NOT FIT" in memory_table(plan, priced, demo_profile(), workload(32))


def test_what_a_stage_may_hold_is_what_plans_may_fill():
    """NCCL's communicators take a part of a real GPU, by the worker's rule."""
    model, stages = find_model("llama3-8b"), (Stage(gpu_type="h100", tp=8, layers=32),)
    plan = Plan(
        (FilledTemplate(stages, 1, (8,)),), (PlacedStage(0, 0, 0, "h100-0", tuple(range(8))),)
    )
    said = {}
    for rule in ("paper", "worker"):
        asked = Workload(
            model=model, global_batch=8, sequence_length=2048, precision="bf16", memory=rule
        )
        profile = find_profile(asked)
        priced = cost_of(plan, asked, Composition.from_text("h100=1x8"), profile)
        said[rule] = memory_table(plan, priced, profile, asked).splitlines()[1].split()[-1]
        usable = usable_bytes(asked, profile.gpu_type("h100"))
        assert said[rule] == f"{usable / 1e9:.2f}"
    assert float(said["worker"]) < float(said["paper"])


def test_an_answer_says_money_and_gains_only_where_they_are_known():
    request = PlanRequest(
        workload=workload(), composition=nodes("fast-0:2 fast-1:3"), budget_evaluations=300
    )
    answer = search(request, demo_profile())
    plain = answer_sentences(answer, request, demo_profile())
    assert f"{answer.throughput_samples_s:.1f} samples/s" in plain
    assert "an hour" not in plain
    assert "one more node" not in plain
    priced = replace(request, composition=with_prices(request.composition, {"demo-fast": 2.0}))
    more = replace(
        answer,
        marginal=(MarginalGain("demo-fast", 2, 3.5),),
        bytes_to_move=1234,
    )
    text = answer_sentences(more, priced, demo_profile())
    assert "an hour of 2 nodes costs 10.00" in text
    assert "one more node of 2 demo-fast adds 3.5 samples/s" in text
    assert "1,234 bytes move from the current plan\n" in text


def test_a_plan_that_is_not_the_fastest_says_why_it_is_the_answer():
    request = PlanRequest(workload=workload(), composition=nodes("fast-0:2"), budget_evaluations=30)
    found = search(request, demo_profile())
    faster = SearchStep("columns", 30, 1.004 * found.throughput_samples_s)
    answer = replace(found, bytes_to_move=5, search_steps=(*found.search_steps, faster))
    text = answer_sentences(answer, request, demo_profile())
    assert "5 bytes move from the current plan, the fewest of the plans within 0.5 %" in text


def test_the_way_to_a_plan_names_what_found_better_ones_once_a_turn():
    request = PlanRequest(workload=workload(), composition=nodes("fast-0:2"), budget_evaluations=30)
    found = (("uniform", 1.0), ("columns", 2.0), ("columns", 3.0), ("local search", 3.0))
    steps = tuple(SearchStep(method, 30, samples_s) for method, samples_s in found)
    answer = replace(search(request, demo_profile()), search_steps=steps)
    text = answer_sentences(answer, request, demo_profile())
    assert "ms: uniform 1.0, columns 3.0 (30 plans evaluated)" in text


def test_a_comparison_names_templates_and_node_pairs():
    one, other = (
        {"workload": workload(12).to_json(), **on_one_node(row, node=node).to_json()}
        for row, node in ((template("1x3 1x3", 2, (6,)), "a"), (template("1x2 1x4", 2, (6,)), "b"))
    )
    text = diff_table(
        compare(one | {"throughput_samples_s": 2}, other | {"throughput_samples_s": 3})
    )
    assert "2.0 -> 3.0 samples/s (+50.0%)" in text
    assert "changed" in text
    assert "demo-fast tp1 x 3 > demo-fast tp1 x 3" in text
    assert "demo-fast tp1 x 2 > demo-fast tp1 x 4" in text
    assert any(line.split()[:2] == ["a", "b"] for line in text.splitlines())
    assert "bytes move in all" in text
    assert "no byte moves" in diff_table(compare(one, one))


def test_an_answer_within_a_limit_says_how_many_of_how_many_gpus_it_may_use():
    request = PlanRequest(
        workload=workload(), composition=nodes("fast-0:4"), budget_evaluations=100
    )
    limited = replace(request, max_gpus=GpuLimits(3, (("demo-fast", 2),)))
    answer = search(limited, demo_profile())
    said = answer_sentences(answer, limited, demo_profile()).splitlines()[0]
    assert "2 of 4 GPUs, at most 3 GPUs and 2 demo-fast, every piece" in said
    assert "at most" not in answer_sentences(answer, request, demo_profile())
