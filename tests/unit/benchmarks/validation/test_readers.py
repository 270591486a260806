"""vTrain's rows in Megatron's rank order; Sailor's files, a template for each kind of replica."""

from __future__ import annotations

import json

import pytest

from benchmarks.validation.facts import read_facts
from benchmarks.validation.readers import COLUMNS, MeasuredPlan, read_plan_file, read_row_file
from planner.cluster.gpu_types import HARDWARE
from planner.cost.evaluate import cost_of
from planner.errors import InvalidMeasurements

VTRAIN = read_facts()["vtrain/a100_multi_node.csv"]
CLARIDEN = read_facts()["sailor/validation_measured/clariden/GPT-NEO"]
MIT = read_facts()["sailor/validation_measured/mit"]


def rows(tmp_path, *rows: str, header: str | None = None) -> list[MeasuredPlan]:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([header or ",".join(COLUMNS), *rows]) + "\n")
    return list(read_row_file(path, VTRAIN, HARDWARE))


def test_ranks_count_through_tp_then_dp_then_pp(tmp_path):
    (case,) = rows(tmp_path, "16,16,1,1024,16,12,1024,2,4,2,100")
    seats = {(p.replica, p.stage): (p.node, p.gpus) for p in case.plan.placement}
    assert seats[0, 0] == ("node-000", (0, 1))
    assert seats[3, 0] == ("node-000", (6, 7))
    assert seats[0, 1] == ("node-001", (0, 1))
    assert case.plan.templates[0].micro_batches == (4,) * 4
    assert (case.seconds, case.group[:2]) == (0.1, (16, 16))


def test_all_stages_recompute_as_the_facts_say(tmp_path):
    (case,) = rows(tmp_path, "16,16,1,1024,16,12,1024,2,4,2,100")
    assert {stage.recompute for stage in case.plan.templates[0].stages} == {"full"}
    assert [stage.layers for stage in case.plan.templates[0].stages] == [6, 6]


def test_a_tp_group_over_two_nodes_pays_the_network(tmp_path):
    within, across = rows(
        tmp_path, "64,512,8,3072,32,30,2048,8,8,1,1", "64,512,8,3072,32,30,2048,16,4,1,1"
    )
    times = [
        cost_of(c.plan, c.workload, c.composition, c.profile).iteration_s for c in (within, across)
    ]
    assert 1.5 < times[1] / times[0] < 3


def test_layers_that_do_not_divide_go_to_the_first_stages(tmp_path):
    (case,) = rows(tmp_path, "8,8,1,1024,16,14,1024,1,2,4,100")
    assert [stage.layers for stage in case.plan.templates[0].stages] == [4, 4, 3, 3]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("16,16,1,1024,16,12,1024,2,4,two,100", "line 2: expected whole numbers"),
        ("16,16,1,1024,16,12,1024,2,4,0,100", "line 2: .* every number must be above 0"),
        ("16,16,1,1024,16,12,1024,2,4,2,nan", "line 2: .* every number must be above 0"),
    ],
)
def test_a_row_that_is_none_is_one_sentence(tmp_path, row, sentence):
    with pytest.raises(InvalidMeasurements, match=sentence):
        rows(tmp_path, row)


def test_a_table_without_a_column_is_one_sentence(tmp_path):
    with pytest.raises(InvalidMeasurements, match="lacks the column '# GPUs'"):
        rows(tmp_path, header="a,b")


def test_facts_of_another_node_size_place_ranks_otherwise(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(",".join(COLUMNS) + "\n16,16,1,1024,16,12,1024,2,4,2,100\n")
    small = VTRAIN.model_copy(update={"gpus_per_node": 4})
    (case,) = read_row_file(path, small, HARDWARE)
    assert len(case.composition.nodes) == 4


def plan(tmp_path, stages, layers, facts=CLARIDEN, **more):
    path = tmp_path / "plan.json"
    pipeline = {"layers_per_stage": layers, "tmp_per_stage": stages}
    row = {"pipeline_list": [pipeline], "mbs": 2, "gbs": 16, "real": 1.5, "max_mem": 7, **more}
    path.write_text(json.dumps(row))
    (case,) = read_plan_file(path, facts, HARDWARE)
    return case


def on(kind: str, tp: int):
    return [[[kind, tp, "zone"]], tp]


def test_embedding_and_head_are_counted_layers_but_no_blocks(tmp_path):
    case = plan(tmp_path, [[on("GH-96", 4)] * 2] * 2, [[0, 1, 2], [3, 3, 5, 6]])
    assert [stage.layers for stage in case.plan.templates[0].stages] == [2, 3]
    assert case.workload.model.layers == 5
    assert case.plan.templates[0].micro_batches == (4, 4)
    assert (case.seconds, case.memory_bytes) == (1.5, 7)
    assert len(case.plan.nodes) == 4


def test_replicas_of_other_types_are_other_templates(tmp_path):
    stages = [[on("RTX-3090", 2), on("Titan-RTX", 2), on("RTX-3090", 2)]]
    case = plan(tmp_path, stages, [[0, 1, 2, 3]], MIT, gbs=12)
    assert [(t.stages[0].gpu_type, t.replicas) for t in case.plan.templates] == [
        ("rtx-3090", 2),
        ("titan-rtx", 1),
    ]


@pytest.mark.parametrize("text", ["{", "{}", '{"pipeline_list": []}', "[]"])
def test_a_file_that_is_no_plan_is_one_sentence(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InvalidMeasurements, match="is not a plan of Sailor's validation") as caught:
        list(read_plan_file(path, CLARIDEN, HARDWARE))
    assert "\n" not in str(caught.value)
