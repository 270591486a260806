"""Sailor's plans: stages count their layers, replicas of other types are other templates."""

from __future__ import annotations

import json

import pytest

from planner.cluster.gpu_types import HARDWARE
from planner.errors import InvalidMeasurements
from planner.validation.sailor_plans import read_plan_file
from planner.validation.set_facts import read_facts

FACTS = read_facts()["sailor/validation_measured/clariden/GPT-NEO"]
MIT = read_facts()["sailor/validation_measured/mit"]


def read(tmp_path, stages, layers, facts=FACTS, **more):
    path = tmp_path / "plan.json"
    pipeline = {"layers_per_stage": layers, "tmp_per_stage": stages}
    row = {"pipeline_list": [pipeline], "mbs": 2, "gbs": 16, "real": 1.5, "max_mem": 7, **more}
    path.write_text(json.dumps(row))
    ((_, case),) = read_plan_file(path, facts, HARDWARE)
    return case


def on(kind: str, tp: int):
    return [[[kind, tp, "zone"]], tp]


def test_embedding_and_head_are_counted_layers_but_no_blocks(tmp_path):
    case = read(tmp_path, [[on("GH-96", 4)] * 2] * 2, [[0, 1, 2], [3, 3, 5, 6]])
    assert [stage.layers for stage in case.plan.templates[0].stages] == [2, 3]
    assert case.workload.model.layers == 5
    assert case.plan.templates[0].micro_batches == (4, 4)
    assert (case.seconds, case.memory_bytes) == (1.5, 7)
    assert len(case.plan.nodes) == 4


def test_replicas_of_other_types_are_other_templates(tmp_path):
    stages = [[on("RTX-3090", 2), on("Titan-RTX", 2), on("RTX-3090", 2)]]
    case = read(tmp_path, stages, [[0, 1, 2, 3]], MIT, gbs=12)
    assert [(t.stages[0].gpu_type, t.replicas) for t in case.plan.templates] == [
        ("rtx-3090", 2),
        ("titan-rtx", 1),
    ]


@pytest.mark.parametrize("text", ["{", "{}", '{"pipeline_list": []}', "[]"])
def test_a_file_that_is_no_plan_is_one_sentence(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InvalidMeasurements, match="is not a plan of Sailor's validation") as caught:
        list(read_plan_file(path, FACTS, HARDWARE))
    assert "\n" not in str(caught.value)
