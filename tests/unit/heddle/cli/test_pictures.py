"""The pictures: a panel per kind of replica, the slow ones marked, small at any size; curves."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from heddle.cli import pictures
from heddle.cli.pictures import BARS, GREY, RED, draw_plan
from planner.cluster.composition import Composition
from planner.cost.evaluate import PlanCost, cost_of
from planner.cost.simulation import replica_seconds, simulate_replica
from planner.model.workload import Workload
from planner.placement.place import place
from planner.plans.plan import FilledTemplate, Plan, Stage
from planner.profiles.generator import find_profile
from tests.builders import demo_profile, nodes, on_one_node, template, work_on, workload

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """A function that draws a plan: its price, the words of the SVG, and matplotlib's axes."""
    figures, write = [], pictures.write

    def kept(path, figure):
        figures.append(figure)
        write(path, figure)

    monkeypatch.setattr(pictures, "write", kept)

    def draw(*templates, batch: int = 12):
        plan = on_one_node(*templates)
        priced = cost_of(plan, workload(batch), nodes(f"fast-0:{plan.gpus}"), demo_profile())
        draw_plan(tmp_path / "plan.svg", plan, priced, demo_profile(), workload(batch))
        return priced, texts(tmp_path / "plan.svg"), figures[-1].axes

    return draw


def texts(path: Path) -> list[str]:
    return ["".join(node.itertext()).strip() for node in ET.parse(path).iter(f"{SVG}text")]


def bars(axes, name: str) -> list[list[tuple[float, float]]]:
    """(start, end) of the bars of a kind, row by row."""
    rows = [c for c in axes.collections if isinstance(c, PolyCollection)]
    return [
        [(path.get_extents().x0, path.get_extents().x1) for path in row.get_paths()]
        for row in rows
        if len(row.get_facecolor()) and to_hex(row.get_facecolor()[0]) == BARS[name]
    ]


def test_every_stage_has_a_row_with_type_degree_layers_time_and_memory(drawn):
    priced, said, _ = drawn(template("1x2 2x4", 2, (6,)))
    assert said.count("demo-fast TP 1, 2 layers") == 1
    assert said.count("demo-fast TP 2, 4 layers") == 1
    for stage in priced.replicas[0].stages:
        assert any(text.startswith(f"{stage.time_s * 1e3:.3g} ms, ") for text in said)
        assert any(f"{stage.peak_memory_bytes / 1e6:.3g} of" in text for text in said)


def test_equal_replicas_share_a_panel_and_others_do_not(drawn):
    _, said, axes = drawn(template("1x3 1x3", 2, (3, 3)), template("2x6", 2, (1,)), batch=14)
    assert len(axes) == 2 * 3
    assert sum("2 replicas, 3 micro-batches of 2" in text for text in said) == 1
    assert sum("1 replica, 1 micro-batch of 2" in text for text in said) == 1


def test_the_slowest_stage_and_the_slowest_replica_are_marked(drawn):
    _, said, axes = drawn(template("1x1 1x5", 2, (6,)), template("2x6", 2, (1,)), batch=14)
    assert [to_hex(bar.get_facecolor()) for bar in axes[1].patches[1:]] == [GREY, RED]
    assert [to_hex(bar.get_facecolor()) for bar in axes[4].patches] == [GREY]  # nothing to compare
    assert said.count("the slowest") == 1


def test_memory_that_does_not_suffice_is_red(drawn):
    _, _, axes = drawn(template("1x6", 16, (2,)), batch=32)
    (over,) = axes[2].texts
    assert over.get_text().endswith(" of 6.5 MB")
    assert over.get_color() == RED


def test_bars_are_the_instructions_of_the_simulation_end_to_end_and_numbered(drawn):
    priced, said, axes = drawn(template("1x2 1x4", 2, (3,)), batch=6)
    played = list(simulate_replica(priced.replicas[0]))
    for kind in ("forward", "backward"):
        rows = bars(axes[0], kind)
        for s, row in enumerate(rows):
            mine = [e for e in played if e.stage == s and e.operation == kind]
            assert row == [pytest.approx((entry.start_s, entry.end_s)) for entry in mine]
        assert len(rows) == 2
    ((end,),) = bars(axes[0], "gradient sum and optimizer")
    step_s = max(e.end_s for e in played) + priced.sync_s + priced.optimizer_s
    assert end[1] == pytest.approx(step_s)
    assert axes[0].get_xlim() == pytest.approx((0, step_s))
    assert [said.count(number) for number in "123"] == [4, 4, 4]


def test_thousands_of_micro_batches_are_drawn_as_shares_of_the_time(drawn):
    priced, said, axes = drawn(template("1x2 1x4", 2, (3000,)), batch=6000)
    (replica,) = priced.replicas
    last_s = replica_seconds(replica)
    for kind in ("forward", "backward"):
        drawn_shares = [
            path.get_extents().height
            for bar in axes[0].collections
            if to_hex(bar.get_facecolor()[0]) == BARS[kind]
            for path in bar.get_paths()
        ]
        worked_s = [3000 * getattr(stage, f"{kind}_s") for stage in replica.stages]
        assert drawn_shares == pytest.approx([0.7 * seconds / last_s for seconds in worked_s])
    assert any("heights are shares of the time" in text for text in said)


def big() -> tuple[Plan, PlanCost, object, Workload]:
    """576 GPUs: 36 replicas of eight stages, hundreds of micro-batches."""
    asked = work_on("llama3-8b", 12 * 801 + 12 * 300, precision="fp16")
    stages = tuple(Stage(gpu_type="h100", tp=2, layers=4) for _ in range(8))
    filled = FilledTemplate(stages, 1, (401, 400) * 12 + (300,) * 12)
    composition = Composition.from_text("h100=144x4")
    where = place(asked.model, (filled,), composition)
    assert where is not None
    plan, profile = Plan((filled,), where), find_profile(asked)
    return plan, cost_of(plan, asked, composition, profile), profile, asked


def test_a_picture_of_hundreds_of_gpus_stays_small(tmp_path):
    path = tmp_path / "big.svg"
    draw_plan(path, *big())
    headings = [text for text in texts(path) if text.startswith("template 0")]
    assert len(headings) == 2  # replicas with about 400 micro-batches, and those with 300
    assert "24 replicas, alike within 0.2%, 400 to 401 micro-batches of 1" in headings[0]
    assert path.stat().st_size < 100_000
