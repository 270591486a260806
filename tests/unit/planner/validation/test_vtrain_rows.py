"""vTrain's rows: Megatron's rank order, TP over nodes, and rows that are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.gpu_types import HARDWARE
from planner.cost.evaluate import price
from planner.errors import InvalidMeasurements
from planner.validation.measured_case import MeasuredCase
from planner.validation.set_facts import read_facts
from planner.validation.vtrain_rows import COLUMNS, TIME, read_row_file

FACTS = read_facts()["vtrain/a100_multi_node.csv"]


def read(tmp_path, *rows: str, header: str | None = None) -> list[MeasuredCase]:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([header or ",".join((*COLUMNS.values(), TIME)), *rows]) + "\n")
    return [case for _, case in read_row_file(path, FACTS, HARDWARE)]


def test_ranks_count_through_tp_then_dp_then_pp(tmp_path):
    (case,) = read(tmp_path, "16,16,1,1024,16,12,1024,2,4,2,100")
    seats = {(p.replica, p.stage): (p.node, p.gpus) for p in case.plan.placement}
    assert seats[0, 0] == ("node-000", (0, 1))
    assert seats[3, 0] == ("node-000", (6, 7))
    assert seats[0, 1] == ("node-001", (0, 1))
    assert case.plan.templates[0].micro_batches == (4,) * 4
    assert (case.seconds, case.group[:2]) == (0.1, (16, 16))


def test_all_stages_recompute_as_the_facts_say(tmp_path):
    (case,) = read(tmp_path, "16,16,1,1024,16,12,1024,2,4,2,100")
    assert {stage.recompute for stage in case.plan.templates[0].stages} == {"full"}
    assert [stage.layers for stage in case.plan.templates[0].stages] == [6, 6]


def test_a_tp_group_over_two_nodes_pays_the_network(tmp_path):
    within, across = read(
        tmp_path, "64,512,8,3072,32,30,2048,8,8,1,1", "64,512,8,3072,32,30,2048,16,4,1,1"
    )
    times = [
        price(c.plan, c.workload, c.composition, c.profile).iteration_s for c in (within, across)
    ]
    assert 1.5 < times[1] / times[0] < 3


def test_layers_that_do_not_divide_go_to_the_first_stages(tmp_path):
    (case,) = read(tmp_path, "8,8,1,1024,16,14,1024,1,2,4,100")
    assert [stage.layers for stage in case.plan.templates[0].stages] == [4, 4, 3, 3]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("16,16,1,1024,16,12,1024,2,4,two,100", "line 2: expected whole numbers"),
        ("16,16,1,1024,16,12,1024,2,4,0,100", "line 2: every number must be above 0"),
        ("16,16,1,1024,16,12,1024,2,4,2,nan", "line 2: every number must be above 0"),
    ],
)
def test_a_row_that_is_none_is_one_sentence(tmp_path, row, sentence):
    with pytest.raises(InvalidMeasurements, match=sentence):
        read(tmp_path, row)


def test_a_table_without_a_column_is_one_sentence(tmp_path):
    with pytest.raises(InvalidMeasurements, match="lacks the column '# GPUs'"):
        read(tmp_path, header="a,b")


def test_facts_of_another_node_size_place_ranks_otherwise(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(",".join((*COLUMNS.values(), TIME)) + "\n16,16,1,1024,16,12,1024,2,4,2,100\n")
    ((_, case),) = read_row_file(path, replace(FACTS, gpus_per_node=4), HARDWARE)
    assert len(case.composition.nodes) == 4
