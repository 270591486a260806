"""The picture of a plan: one panel per kind of replica, the slow ones marked, small at any size."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from planner.cli.plan_picture import LANE, LANE_WIDTH, RED, TINT, plan_svg
from planner.cluster.composition import Composition
from planner.cost.evaluate import Price, price
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.placement.place import place
from planner.plans.plan import FilledTemplate, Plan, Stage
from planner.profiles.generator import find_profile
from tests.builders import demo_profile, nodes, on_one_node, template, workload

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*templates, batch: int = 12) -> tuple[Price, ET.Element]:
    plan = on_one_node(*templates)
    priced = price(plan, workload(batch), nodes(f"fast-0:{plan.gpus}"), demo_profile())
    return priced, ET.fromstring(plan_svg(plan, priced, demo_profile()))


def texts(picture: ET.Element) -> list[str]:
    return ["".join(node.itertext()) for node in picture.iter(f"{SVG}text")]


def test_every_stage_has_a_row_with_type_degree_layers_time_and_memory():
    priced, picture = drawn(template("1x2 2x4", 2, (6,)))
    said = texts(picture)
    assert sum("demo-fast TP 1" in text for text in said) == 1
    assert sum("demo-fast TP 2" in text for text in said) == 1
    assert {"2", "4"} < set(said)
    for stage in priced.replicas[0].stages:
        assert f"{stage.time_s * 1e3:.3g} ms" in said
        assert any(f"{stage.peak_memory_bytes / 1e6:.3g} of" in text for text in said)


def test_equal_replicas_share_a_panel_and_others_do_not():
    _, picture = drawn(template("1x3 1x3", 2, (3, 3)), template("2x6", 2, (1,)), batch=14)
    said = " ".join(texts(picture))
    assert "2 replicas" in said
    assert said.count("demo-fast TP 1") == 2
    assert "1 micro-batch of 2" in said


def test_the_slowest_stage_and_the_slowest_replica_are_marked():
    _, picture = drawn(template("1x1 1x5", 2, (6,)), template("2x6", 2, (1,)), batch=14)
    marks = [r for r in picture.iter(f"{SVG}rect") if r.get("fill") == RED and r.get("x") == "12"]
    rows = [t for t in picture.iter(f"{SVG}text") if "TP 1" in "".join(t.itertext())]
    assert len(marks) == 1  # one stage alone has no slowest
    assert abs(int(marks[0].get("y")) + 15 - int(rows[1].get("y"))) < 2
    assert sum("the slowest" in text for text in texts(picture)) == 1
    assert any(r.get("fill") == TINT for r in picture.iter(f"{SVG}rect"))


def test_memory_that_does_not_suffice_is_red():
    _, picture = drawn(template("1x6", 16, (2,)), batch=32)
    over = [t for t in picture.iter(f"{SVG}text") if " of 6.5 MB" in "".join(t.itertext())]
    assert [t.get("class") for t in over] == ["r"]


def test_bars_are_the_instructions_of_the_simulation():
    """One stage: forward and backward of two micro-batches, end to end, numbered."""
    priced, picture = drawn(template("1x6", 2, (2,)), batch=4)
    scale = LANE_WIDTH * 10 / priced.iteration_s
    stage = priced.replicas[0].stages[0]
    bars = {}
    for path in picture.iter(f"{SVG}path"):
        if path.get("class") in ("F", "B"):
            spans = re.findall(r"M(\d+) 0h(\d+)", path.get("d"))
            bars[path.get("class")] = [tuple(map(int, span)) for span in spans]
    whole = stage.forward_s + stage.backward_s
    for kind, start_s, length_s in (
        ("F", 0.0, stage.forward_s),
        ("B", stage.forward_s, stage.backward_s),
    ):
        for index, (start, length) in enumerate(bars[kind]):
            assert abs(start - (start_s + index * whole) * scale) <= 1
            assert abs(length - length_s * scale) <= 1
        assert len(bars[kind]) == 2
    assert texts(picture).count("12") == 2


def big() -> tuple[Plan, Price, object]:
    """576 GPUs: 36 replicas of eight stages, hundreds of micro-batches."""
    asked = Workload(find_model("llama3-8b"), 12 * 801 + 12 * 300, 2048, "fp16")
    stages = tuple(Stage("h100", 2, 4) for _ in range(8))
    filled = FilledTemplate(stages, 1, (401, 400) * 12 + (300,) * 12)
    composition = Composition.from_text("h100=144x4")
    where = place(asked.model, (filled,), composition)
    assert where is not None
    plan, profile = Plan((filled,), where), find_profile(asked)
    return plan, price(plan, asked, composition, profile), profile


def test_a_picture_of_hundreds_of_gpus_stays_small():
    plan, priced, profile = big()
    svg = plan_svg(plan, priced, profile)
    panels = svg.count("template 0")
    assert panels == 2  # replicas with about 400 micro-batches, and those with 300
    assert len(svg) < 12_000 * panels
    assert "24 replicas, alike within 0.2%" in svg
    assert "400 to 401 micro-batches of 1" in svg


def test_no_bar_leaves_the_lane():
    plan, priced, profile = big()
    picture = ET.fromstring(plan_svg(plan, priced, profile))
    for path in picture.iter(f"{SVG}path"):
        if path.get("class") in ("F", "B", "M"):
            ends = [int(n) for n in re.findall(r"H(\d+)", path.get("d"))]
            assert max(ends, default=0) <= LANE_WIDTH * 10 + 1
    for rect in picture.iter(f"{SVG}rect"):
        if rect.get("fill") == "#6aa56a" and rect.get("y") != "70":
            end = float(rect.get("x")) + float(rect.get("width"))
            assert abs(end - LANE - LANE_WIDTH) < 0.2
