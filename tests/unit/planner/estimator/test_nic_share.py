"""How many rings leave a node, against the rings of plans that are really placed."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cluster.composition import Composition
from planner.estimator.build_tables import pricing_of
from planner.estimator.nic_share import look_where, nic_seconds, rings_of, stage_nic_seconds
from planner.estimator.unplaced_plan import new_plan
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile

GPUS = 8


@pytest.fixture(scope="module")
def tables():
    workload = Workload(model=find_model("llama3-8b"), global_batch=2048, sequence_length=2048)
    pricing = pricing_of(workload, Composition.from_text("h100=4x8"), find_profile(workload))
    assert pricing is not None
    assert pricing.tables.option_tp.tolist()[:2] == [1, 2]
    return pricing.tables


def plan_of(*templates: tuple[int, tuple[int, ...], int]):
    """Templates as (option, blocks of each stage, replicas)."""
    plan = new_plan()
    plan.number[0] = len(templates)
    for k, (option, blocks, replicas) in enumerate(templates):
        plan.depth[k], plan.replicas[k] = len(blocks), replicas
        plan.options[k, : len(blocks)] = option
        plan.blocks[k, 0, : len(blocks)] = blocks
    return plan


def rings(tables, plan) -> int:
    held = np.zeros((4, int(plan.number[0]), 1), np.int64)
    look_where(tables, plan, held)
    return rings_of(int(plan.number[0]), plan.replicas, 0, GPUS, held)


def test_replicas_beside_each_other_share_their_rings(tables):
    assert rings(tables, plan_of((0, (8, 8, 16), 10))) == 3


def test_a_replica_over_several_nodes_has_a_ring_for_every_gpu(tables):
    assert rings(tables, plan_of((1, (6, 6, 6, 6, 8), 3))) == GPUS


def test_templates_that_hold_the_same_layers_share_rings(tables):
    assert rings(tables, plan_of((0, (8, 8, 16), 5), (0, (4, 4, 8, 16), 3))) == 4


def test_templates_behind_each_other_add_their_rings(tables):
    plan = plan_of((0, (8, 8, 16), 5), (0, (8, 8, 8, 8), 3))
    plan.options[0, 2], plan.options[1, :2] = 9, 9  # stages on other GPUs
    two = tables._replace(option_type=np.array([0] * 9 + [1]), option_tp=np.ones(10, np.int64))
    held = np.zeros((4, 2, 2), np.int64)
    look_where(two, plan, held)
    # 2 of the first, 2 of the second behind them
    assert rings_of(2, plan.replicas, 0, GPUS, held) == 4
    plan.replicas[:2] = 4  # both fill whole nodes
    assert rings_of(2, plan.replicas, 0, GPUS, held) == 2


def test_the_share_of_a_gpu_is_that_of_its_ring(tables):
    held, out = np.zeros((4, 1, 1), np.int64), np.zeros(1)
    nic_seconds(tables, plan_of((0, (8, 8, 16), 10)), held, out)
    assert out[0] == pytest.approx(tables.nic[0, 1] * 3 / GPUS)


def test_where_rings_are_unknown_all_gpus_send_apart(tables):
    held, out = np.zeros((4, 1, 1), np.int64), np.zeros(1)
    nic_seconds(tables._replace(rings=0), plan_of((0, (8, 8, 16), 10)), held, out)
    assert out[0] == tables.nic[0, 1]


@pytest.mark.parametrize(
    ("option", "ways", "replicas", "rings"),
    [
        (0, 2, 8, 1),  # a stage fills a node
        (0, 2, 16, 1),
        (0, 2, 12, 2),  # half a node is left for the next stage
        (0, 2, 4, 2),
        (0, 2, 2, 4),
        (0, 2, 3, 4),  # one of a stage, three of two more, one of a fourth
        (1, 4, 4, 2),  # each GPU of a TP group sends its own part
        (1, 1, 4, 1),  # if it is not the same
        (1, 4, 6, 4),
        (3, 8, 5, 8),
    ],
)
def test_where_a_node_takes_one_stage_of_many_replicas_few_rings_leave_it(
    tables, option, ways, replicas, rings
):
    seconds = stage_nic_seconds(tables, option, replicas, ways)
    assert seconds == pytest.approx(tables.nic[0, 1] * rings / GPUS)
