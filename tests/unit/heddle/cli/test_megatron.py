"""Launch arguments of Megatron: the plan exactly, or one sentence on what is irregular."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from heddle.cli.megatron import megatron_arguments
from planner.cluster.composition import Composition
from planner.errors import IrregularPlan
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.placement.place import place
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from tests.builders import work_on

LLAMA = Workload(
    model=find_model("llama3-8b"), global_batch=64, sequence_length=2048, precision="bf16"
)
MIXTRAL = work_on("mixtral-8x7b", 64, precision="fp16", sequence_parallel=True)
NODES = Composition.from_text("h100=4x8,a100-80=4x8")


def plan_of(
    *layers: int, workload: Workload = LLAMA, rounds: tuple[int, ...] = (16, 16), **stage
) -> Plan:
    stages = tuple(replace(Stage(gpu_type="h100", tp=4, layers=count), **stage) for count in layers)
    template = FilledTemplate(stages, 2, rounds)
    where = place(workload.model, (template,), NODES)
    assert where is not None
    return Plan((template,), where)


def arguments(plan: Plan, workload: Workload = LLAMA) -> set[str]:
    return set(megatron_arguments(plan, workload).splitlines()[1:])


def test_an_even_plan_is_its_degrees_and_its_batch():
    assert arguments(plan_of(16, 16)) == {
        "--num-layers 32",
        "--seq-length 2048",
        "--tensor-model-parallel-size 4",
        "--pipeline-model-parallel-size 2",
        "--micro-batch-size 2",
        "--global-batch-size 64",
        "--bf16",
        "--use-tp-pp-dp-mapping",
    }
    first = megatron_arguments(plan_of(16, 16), LLAMA).splitlines()[0]
    assert first == "# h100, 2 x 8 GPUs (h100-0 h100-1)"


def test_uneven_ends_have_arguments_of_their_own():
    found = arguments(plan_of(7, 9, 9, 7, rounds=(32,)))
    assert {"--decoder-first-pipeline-num-layers 7", "--decoder-last-pipeline-num-layers 7"} < found
    assert {
        "--decoder-first-pipeline-num-layers 15",
        "--decoder-last-pipeline-num-layers 17",
    } < arguments(plan_of(15, 17))


def test_any_other_split_is_a_layout_that_holds_every_layer_once():
    found = arguments(plan_of(7, 8, 9, 8, rounds=(32,)))
    assert '--pipeline-model-parallel-layout "Et*7|t*8|t*9|t*8L"' in found
    layout = next(line for line in found if "layout" in line)
    assert sum(map(int, re.findall(r"t\*(\d+)", layout))) == 32


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("selective", {"--recompute-granularity selective"}),
        (
            "full",
            {
                "--recompute-granularity full",
                "--recompute-method uniform",
                "--recompute-num-layers 1",
            },
        ),
    ],
)
def test_recomputation_is_said(how, expected):
    assert {a for a in arguments(plan_of(16, 16, recompute=how)) if "recompute" in a} == expected
    assert not {a for a in arguments(plan_of(16, 16)) if "recompute" in a}


def test_zero_and_precision_and_sequence_parallelism_are_said():
    other = replace(LLAMA, precision="fp16", sequence_parallel=True)
    more = arguments(plan_of(16, 16).with_zero(1), other) - arguments(plan_of(16, 16))
    assert more == {"--fp16", "--use-distributed-optimizer", "--sequence-parallel"}
    alone = arguments(plan_of(16, 16, tp=1, rounds=(32,)), other)
    assert "--sequence-parallel" not in alone  # without TP there is nothing to cut


def test_experts_have_their_own_degrees():
    found = arguments(plan_of(32, workload=MIXTRAL, ep=8, etp=1), MIXTRAL)
    assert {"--expert-model-parallel-size 8", "--expert-tensor-parallel-size 1"} < found
    plain = arguments(plan_of(16, 16, workload=MIXTRAL), MIXTRAL)
    assert {"--expert-model-parallel-size 1", "--expert-tensor-parallel-size 4"} < plain


def mixed(**change) -> Plan:
    """Two stages, the second of which differs."""
    stages = (
        Stage(gpu_type="h100", tp=4, layers=16),
        replace(Stage(gpu_type="h100", tp=4, layers=16), **change),
    )
    template = FilledTemplate(stages, 2, (32,))
    where = place(LLAMA.model, (template,), NODES)
    assert where is not None
    return Plan((template,), where)


@pytest.mark.parametrize(
    ("plan", "workload", "sentence"),
    [
        (mixed(gpu_type="a100-80"), LLAMA, r"GPU type is not the same everywhere \(a100-80, h100"),
        (mixed(tp=2), LLAMA, r"TP degree is not the same everywhere \(2, 4\)"),
        (mixed(recompute="full"), LLAMA, "recomputation is not the same everywhere"),
        (plan_of(16, 16, rounds=(15, 17)), LLAMA, r"micro-batches by replica .* \(15, 17\)"),
        (
            plan_of(16, 16, workload=MIXTRAL),
            replace(MIXTRAL, sequence_parallel=False),
            "wants sequence parallelism",
        ),
        (mixed(ep=4, etp=1), MIXTRAL, "expert tiling"),
    ],
)
def test_what_is_irregular_is_one_sentence(plan, workload, sentence):
    with pytest.raises(IrregularPlan, match=sentence) as caught:
        megatron_arguments(plan, workload)
    assert "\n" not in str(caught.value)


def test_several_templates_are_irregular():
    one = plan_of(16, 16).templates[0]
    templates = (one, replace(one, micro_batches=(8,)))
    where = place(LLAMA.model, templates, NODES)
    assert where is not None
    with pytest.raises(IrregularPlan):
        megatron_arguments(Plan(templates, where), LLAMA)


def placed(nodes: str, stages: int, workload: Workload = LLAMA, **stage) -> Plan:
    """A plan with TP 4 on the nodes named by letters: of replica 0 by stage, of replica 1, ..."""
    replicas = len(nodes) // stages
    layers = (32 // stages,) * stages
    template = plan_of(*layers, workload=workload, rounds=(32 // replicas,) * replicas, **stage)
    where = tuple(
        PlacedStage(0, i // stages, i % stages, name, tuple(range(4 * half, 4 * half + 4)))
        for i, name in enumerate(nodes)
        for half in [nodes[:i].count(name)]
    )
    return Plan(template.templates, where)


MAPPING = "--use-tp-pp-dp-mapping"


@pytest.mark.parametrize(
    ("nodes", "stages", "expected"),
    [
        ("AA BB", 2, {MAPPING}),  # the stages of a replica on one node
        ("AB AB", 2, set()),  # the replicas of a stage on one node
        ("AB AC BC", 2, set()),
        ("AB CD AB CD", 2, set()),  # replicas 0 and 2 beside each other
        ("AAB BCC", 3, {MAPPING}),
        ("A A B B", 1, set()),
        ("AABB", 4, set()),  # one replica: both orders are the same
    ],
)
def test_the_order_of_ranks_places_stages_as_the_plan_does(nodes, stages, expected):
    plan = placed(nodes.replace(" ", ""), stages)
    assert {a for a in arguments(plan) if "mapping" in a} == expected


def test_nodes_are_named_in_the_order_of_their_ranks():
    plan = placed("CCBBAA", 2)
    first = megatron_arguments(plan, LLAMA).splitlines()[0]
    assert first == "# h100, 3 x 8 GPUs (C B A)"


def test_a_placement_of_neither_order_is_irregular():
    with pytest.raises(IrregularPlan, match="neither the replicas of a stage nor the stages"):
        megatron_arguments(placed("ABBA", 2), LLAMA)


def test_spread_experts_want_the_replicas_of_a_stage_side_by_side():
    assert MAPPING in arguments(placed("AABB", 2, MIXTRAL, ep=4, etp=1), MIXTRAL)
    with pytest.raises(IrregularPlan, match="EP x ETP equal to TP"):
        megatron_arguments(placed("AABB", 2, MIXTRAL, ep=8, etp=1), MIXTRAL)
    assert MAPPING not in arguments(placed("ABAB", 2, MIXTRAL, ep=8, etp=1), MIXTRAL)
