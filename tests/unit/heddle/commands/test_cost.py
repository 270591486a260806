"""`heddle cost`: hand-written plans, an explanation, edges, a picture, and wrong plans."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner

from heddle.commands.cost import cost
from heddle.commands.plan import plan
from planner.errors import (
    HeddleError,
    InvalidMeasurements,
    InvalidPlan,
    InvalidRequest,
    InvalidWorkload,
)
from tests.refusals import refused

HAND_WRITTEN = {
    "workload": {
        "model": "llama3-8b",
        "global_batch": 64,
        "sequence_length": 2048,
        "precision": "fp16",
    },
    "composition": [{"name": f"n{i}", "type": "a100-80", "gpus": 4} for i in range(4)],
    "templates": [
        {
            "micro_batch": 2,
            "micro_batches": [16, 16],
            "stages": [
                {"gpu_type": "a100-80", "tp": 4, "layers": 16, "recompute": "selective"},
                {"gpu_type": "a100-80", "tp": 4, "layers": 16, "recompute": "full"},
            ],
        }
    ],
}


def run(command, *line: str, stdin: object = None) -> str:
    text = stdin if isinstance(stdin, str) else json.dumps(stdin)
    result = CliRunner().invoke(command, line, input=text, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def priced(*line: str, stdin: object = HAND_WRITTEN) -> dict:
    return json.loads(run(cost, "-", "--output", "json", *line, stdin=stdin))


def test_a_hand_written_plan_without_placement_is_placed_and_explained():
    found = priced()
    first, last = found["replicas"][0]["stages"]
    parts = ("compute_s", "tp_communication_s", "recompute_s", "p2p_s")
    for stage in (first, last):
        assert stage["stage_s"] == pytest.approx(sum(stage[part] for part in parts))
        assert stage["memory_bytes"]["optimizer"] > stage["memory_bytes"]["weights"] > 0
    assert last["recompute_s"] > 10 * first["recompute_s"] >= 0
    assert found["simulated_s"] <= found["iteration_s"]
    assert (found["profile_origin"], found["link_origin"]) == ("modelled", "assumed")


def test_a_plan_that_is_placed_keeps_its_stage_of_zero():
    whole, cut = json.loads(json.dumps(HAND_WRITTEN)), json.loads(json.dumps(HAND_WRITTEN))
    for template in cut["templates"]:
        template["zero"] = 1
    moments = [
        found["replicas"][0]["stages"][0]["memory_bytes"]["optimizer"]
        for found in (priced(stdin=whole), priced(stdin=cut))
    ]
    assert moments[1] < moments[0]


def test_the_table_names_every_part_of_the_price():
    text = run(cost, "-", stdin=HAND_WRITTEN)
    for part in ("forward ms", "TP ms", "recompute ms", "p2p ms", "optimizer", "activations"):
        assert part in text
    for part in ("formula", "simulated", "bubble", "gradient sum", "links assumed"):
        assert part in text


def test_edges_are_priced_as_placed_unless_all_are_to_count_as_crossing():
    beside = json.loads(json.dumps(HAND_WRITTEN))
    beside["composition"] = [{"name": "n", "type": "a100-80", "gpus": 16}]
    crossing, placed = priced("--no-placement", stdin=beside), priced(stdin=beside)
    assert (crossing["edges"], placed["edges"]) == ("nodes", "placement")
    assert placed["iteration_s"] < crossing["iteration_s"]
    assert priced(stdin={**beside, "edges": "nodes"}) == crossing
    assert priced("--placement", stdin={**beside, "edges": "nodes"}) == placed


def test_json_says_whether_each_stage_and_the_plan_fit():
    found = priced()
    stages = [stage for replica in found["replicas"] for stage in replica["stages"]]
    for stage in stages:
        assert stage["usable_bytes"] > 0
        assert stage["fits"] == (stage["peak_memory_bytes"] <= stage["usable_bytes"])
    assert found["fits"] == all(stage["fits"] for stage in stages)
    longer = priced("--seq-len", "131072")
    assert not longer["fits"]


def test_a_planned_plan_is_priced_as_it_was_planned_for_any_model(tmp_path):
    line = ("--model", "llama3-8b", "--composition", "h100=1x4", "--batch", "16")
    limits = ("--budget-evaluations", "5", "--max-stages", "2", "--output", "json")
    planned = run(plan, *line, *limits)
    again = priced(stdin=planned)
    for key in ("iteration_s", "simulated_s", "profile_digest", "digest"):
        assert again[key] == json.loads(planned)[key]


PLANNED = [  # what was asked, and whether the best plan is placed by stage
    ("llama3-8b", "h100=4x4,a100-40=4x4", False),
    ("mixtral-8x7b", "a100-80=3x8", True),
]


@pytest.mark.parametrize(("model", "text", "is_by_stage"), PLANNED)
def test_a_plan_without_its_placement_is_placed_as_it_was_planned(model, text, is_by_stage):
    line = ("--model", model, "--composition", text, "--batch", "256", "--seq-len", "2048")
    limits = ("--budget-evaluations", "3000", "--max-stages", "8", "--output", "json")
    planned = json.loads(run(plan, *line, *limits))
    assert priced(stdin=planned)["iteration_s"] == planned["iteration_s"]
    del planned["edges"]
    assert priced(stdin=planned)["iteration_s"] == planned["iteration_s"]
    first_stages = {
        (row["template"], row["node"]) for row in planned["placement"] if not row["stage"]
    }
    replicas = sum(len(template["micro_batches"]) for template in planned["templates"])
    assert (len(first_stages) < replicas) or not is_by_stage
    del planned["placement"]
    assert priced(stdin=planned)["iteration_s"] <= planned["iteration_s"]


def test_a_picture_is_an_svg_with_a_row_for_each_stage(tmp_path):
    path = tmp_path / "schedule.svg"
    run(cost, "-", "--picture", str(path), stdin=HAND_WRITTEN)
    texts = [
        "".join(node.itertext())
        for node in ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")
    ]
    assert sum("a100-80 TP 4" in text and "16 layers" in text for text in texts) == 2
    assert any("2 replicas" in text for text in texts)
    with refused(InvalidRequest, "Unwritable"):
        run(cost, "-", "--picture", str(tmp_path / "no" / "x.svg"), stdin=HAND_WRITTEN)


def test_the_network_card_that_is_assumed_is_named():
    assert "network card of a node (assumed): a100-80 " in run(cost, "-", stdin=HAND_WRITTEN)


def test_a_micro_batch_off_the_grid_is_priced_between_its_neighbours():
    times = []
    for b, rounds in ((2, 16), (3, 16), (4, 16)):
        data = changed("templates", 0, "micro_batch", value=b)
        data["templates"][0]["micro_batches"] = [rounds, rounds]
        data["workload"]["global_batch"] = 2 * b * rounds
        times.append(priced(stdin=data)["iteration_s"])
    assert times[0] < times[1] < times[2]


def changed(*path, value):
    data = json.loads(json.dumps(HAND_WRITTEN))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return data


STAGE = ("templates", 0, "stages", 0)


@pytest.mark.parametrize(
    ("data", "mistake"),
    [
        (
            changed(*STAGE, "tp", value="four"),
            ("Unreadable", None),
        ),
        (
            changed(*STAGE, "recompute", value="some"),
            ("Unreadable", None),
        ),
        (changed(*STAGE, "tp", value=3), ("Unsupported", None)),
        (changed(*STAGE, "layers", value=17), ("Unsupported", None)),
        (changed(*STAGE, "ep", value=2), ("Unsupported", None)),
        (changed("workload", "model", value="gpt-9"), ("Unknown", None)),
        (changed("workload", "precision", value="fp8"), ("Unknown", "precision")),
        (changed("workload", "zero", value=3), ("Unsupported", "zero")),
        (changed("workload", "global_batch", value="x"), ("Malformed", "global_batch")),
        (changed("workload", "colour", value=1), ("Unknown", "colour")),
        (changed("workload", value=[]), ("Malformed", None)),
        (changed("composition", value=[]), ("OutOfRange", None)),
        (changed("edges", value="x"), ("Unknown", "edges")),
        (changed("edges", value=[]), ("Unknown", "edges")),
        (changed("edges", value=0), ("Unknown", "edges")),
    ],
)
def test_a_wrong_plan_is_one_sentence(data, mistake):
    with refused(HeddleError, *mistake):
        priced(stdin=data)


def test_a_plan_for_another_model_is_one_sentence():
    with refused(InvalidPlan, "Mismatch", "model"):
        priced("--model", "qwen3-32b")


def test_a_plan_without_a_batch_is_one_sentence():
    data = {key: value for key, value in HAND_WRITTEN.items() if key != "workload"}
    with refused(InvalidWorkload, "Missing", "global_batch"):
        priced("--model", "llama3-8b", stdin=data)
    by_paper = HAND_WRITTEN | {"workload": HAND_WRITTEN["workload"] | {"memory": "paper"}}
    found = priced("--model", "llama3-8b", "--batch", "64", stdin=data)
    assert found == priced() != priced(stdin=by_paper), "memory is counted as `heddle plan` does"


def measured(*seconds: object) -> list[dict]:
    """Entries of a file of measurements; each has a plan of its own batch."""
    rows = []
    for number, one in enumerate(seconds, 1):
        stages = HAND_WRITTEN["templates"][0]["stages"]
        shape = {"micro_batch": 2, "micro_batches": [16 * number] * 2, "stages": stages}
        batch = HAND_WRITTEN["workload"] | {"global_batch": 64 * number}
        rows.append(HAND_WRITTEN | {"workload": batch, "templates": [shape], "measured_s": one})
    return rows


def test_measured_plans_are_compared_with_their_cost_one_by_one(tmp_path):
    exact = priced()["iteration_s"]
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(measured(exact, exact)))
    found = json.loads(run(cost, "--measured", str(file), "--output", "json"))
    first, second = found["plans"]
    assert first["error_percent"] == pytest.approx(0)
    assert (first["iteration_s"], first["measured_s"]) == (exact, exact)
    assert second["error_percent"] == pytest.approx(100 * (second["iteration_s"] / exact - 1))
    assert found["mean_error_percent"] == pytest.approx(second["error_percent"] / 2)
    file.write_text("\n".join(json.dumps(row) for row in measured(exact, exact)))
    assert json.loads(run(cost, "--measured", str(file), "--output", "json")) == found
    text = run(cost, "--measured", str(file))
    assert len(text.splitlines()) == 1 + 2 + 2
    assert f"mean error {found['mean_error_percent']:.1f} % of 2 plans" in text


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", ("Missing", None)),
        ("{", ("Unreadable", None)),
        ("[]", ("Missing", None)),
        ("[1]", ("Malformed", "measured_s")),
        (json.dumps(measured(0)), ("OutOfRange", "measured_s")),
        (json.dumps(measured(1.0, "x")), ("OutOfRange", "measured_s")),
        (json.dumps(measured(None)), ("OutOfRange", "measured_s")),
        (json.dumps([{**measured(1.0)[0], "templates": 3}]), ("Unreadable", None)),
        (json.dumps([{**measured(1.0)[0], "edges": "x"}]), ("Unknown", "edges")),
    ],
)
def test_a_wrong_file_of_measurements_is_one_sentence_that_names_the_entry(tmp_path, text, mistake):
    file = tmp_path / "measured.json"
    file.write_text(text)
    with refused(InvalidMeasurements, *mistake):
        run(cost, "--measured", str(file))


def test_measured_plans_stand_alone(tmp_path):
    with refused(InvalidRequest, "Contradiction"):
        run(cost, "plan.json", "--measured", str(tmp_path))
    with refused(InvalidRequest, "Contradiction"):
        run(cost, "--measured", str(tmp_path), "--batch", "3")
    with refused(InvalidRequest, "Missing"):
        run(cost)
