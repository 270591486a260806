"""The grid says which layers a GPU holds and whether they moved there."""

from __future__ import annotations

from heddle.train.screen.grid import cells, sparkline
from heddle_operator.state.snapshot import ObservedNode
from planner.model.catalogue import MODELS
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage

MODEL = MODELS["tiny-llama"]
NODES = (
    ObservedNode(name="a", gpu_type="demo-fast", gpus=2),
    ObservedNode(name="b", gpu_type="demo-fast", gpus=1),
)


def plan(*stages):
    """Stages of one template: (layers, node, GPUs)."""
    return Plan(
        (
            FilledTemplate(
                tuple(Stage(gpu_type="demo-fast", tp=len(g), layers=n) for n, _, g in stages),
                1,
                (32,),
            ),
        ),
        tuple(PlacedStage(0, 0, s, node, gpus) for s, (_, node, gpus) in enumerate(stages)),
    )


def test_cells_name_embedding_blocks_head_and_tp_share():
    now = plan((2, "b", (0,)), (4, "a", (0, 1)))
    texts = [cell.now for cell in cells(MODEL, NODES, now, None)]
    assert texts == ["3-6H 1/2", "3-6H 2/2", "E1-2"]


def test_only_state_that_was_not_there_before_is_marked_as_moved():
    before = plan((6, "a", (0,)))
    now = plan((3, "a", (0,)), (3, "b", (0,)))
    found = {
        (c.node, c.gpu): (c.before, c.now, c.has_moved) for c in cells(MODEL, NODES, now, before)
    }
    assert found == {
        ("a", 0): ("E1-6H", "E1-3", False),
        ("a", 1): ("", "", False),
        ("b", 0): ("", "4-6H", True),
    }


def test_a_finer_tp_share_of_the_same_gpu_does_not_move():
    before, now = plan((6, "a", (0,))), plan((6, "a", (0, 1)))
    assert [c.has_moved for c in cells(MODEL, NODES, now, before)] == [False, True, False]


def test_a_sparkline_falls_with_its_values():
    assert sparkline([8.0, 6, 4, 2], 4, 2, 8) == "█▆▃▁"
    assert len(sparkline(list(range(100)), 20, 0, 99)) == 20
    assert sparkline([], 5, 0, 1) == ""
