"""The commands plan and price: they explain themselves, agree, and refuse in one sentence."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner

from planner.cli import plan
from planner.errors import (
    HeddleError,
    Infeasible,
    InvalidComposition,
    InvalidPlan,
    InvalidWorkload,
    UnprofiledConfiguration,
)
from planner.price_cli import price

FIVE = "--composition demo-fast=1x2+1x3 --min-holders 2"


TINY = '{"model": "tiny-llama", "global_batch": 32, "sequence_length": 128}'


def run(command, line: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(command, shlex.split(line), input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def answer(line: str = FIVE) -> dict:
    return json.loads(run(plan, f"{line} --output json"))


def test_plan_without_arguments_explains_itself_with_an_example_that_runs():
    text = run(plan, "")
    example = next(line.strip() for line in text.splitlines() if "heddle plan --comp" in line)
    assert "samples/s" in run(plan, example.removeprefix("heddle plan "))


def test_price_of_a_plan_agrees_with_the_plan_bit_for_bit():
    planned = run(plan, f"{FIVE} --output json")
    priced = json.loads(run(price, "- --output json", stdin=planned))
    for key in ("iteration_s", "simulated_s", "throughput_samples_s", "digest", "profile_digest"):
        assert priced[key] == json.loads(planned)[key]


def test_tables_name_what_json_holds():
    text = run(plan, FIVE)
    assert f"{answer()['throughput_samples_s']:.1f} samples/s" in text
    assert "profile modelled" in text
    text = run(price, "-", stdin=json.dumps(answer()))
    assert "formula" in text
    assert "simulated" in text


def test_a_nodes_file_says_the_same_as_text(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(json.dumps(answer()["composition"]))
    again = answer(f"--nodes {path} --min-holders 2")
    assert again["digest"] == answer()["digest"]


def test_a_node_can_be_left_out_and_the_others_keep_what_they_hold(tmp_path):
    path = tmp_path / "current.json"
    path.write_text(json.dumps(answer()))
    rest = answer(f"{FIVE} --exclude demo-fast-0 --current {path}")
    assert {row["node"] for row in rest["placement"]} == {"demo-fast-1"}
    assert rest["bytes_to_move"] == 0


def test_the_answer_is_never_slower_than_the_current_plan_and_says_what_moves(tmp_path):
    path = tmp_path / "current.json"
    path.write_text(json.dumps(answer("--composition demo-fast=1x2")))
    grown = answer(f"--composition demo-fast=1x2+1x3 --current {path}")
    assert grown["throughput_samples_s"] >= json.loads(path.read_text())["throughput_samples_s"]
    assert grown["bytes_to_move"] > 0


def test_a_plan_can_be_priced_on_another_composition(tmp_path):
    planned = answer("--composition demo-fast=1x2")
    path = tmp_path / "nodes.yaml"
    path.write_text("- {name: demo-fast-0, type: demo-fast, gpus: 2, speed_factor: 0.5}\n")
    line = f"- --nodes {path} --output json"
    priced = json.loads(run(price, line, stdin=json.dumps(planned)))
    assert priced["iteration_s"] > 1.5 * planned["iteration_s"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--composition demo-fast=1by2", InvalidComposition),
        ("--composition demo-fast=1x2 --nodes nodes.yaml", InvalidComposition),
        ("--nodes missing.yaml", InvalidComposition),
        ("--composition demo-fast=1x2 --exclude nobody", InvalidComposition),
        ("--composition demo-fast=1x2 --model gpt-9", InvalidWorkload),
        ("--composition demo-fast=1x2 --batch 0", InvalidWorkload),
        ("--composition demo-fast=1x2 --seq-len 64", UnprofiledConfiguration),
        ("--composition demo-fast=1x2 --profile nowhere", UnprofiledConfiguration),
        ("--composition demo-fast=1x2 --current missing.json", InvalidPlan),
        ("--composition demo-fast=1x1", Infeasible),
        ("--composition h999=1x1", Infeasible),
    ],
)
def test_bad_input_is_one_sentence(line, error):
    with pytest.raises(error) as caught:
        run(plan, line)
    assert isinstance(caught.value, HeddleError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("stdin", "error"),
    [
        ("no json", InvalidPlan),
        ("[]", InvalidPlan),
        ("{}", InvalidWorkload),
        (f'{{"workload": {TINY}}}', InvalidComposition),
        (f'{{"workload": {TINY}, "composition": []}}', InvalidPlan),
        ('{"composition": [], "workload": {"model": {"name": 3}}}', InvalidWorkload),
    ],
)
def test_a_plan_that_is_none_is_one_sentence(stdin, error):
    with pytest.raises(error) as caught:
        run(price, "-", stdin=stdin)
    assert "\n" not in str(caught.value)


def test_a_plan_changed_by_hand_is_refused():
    planned = answer()
    planned["templates"][0]["micro_batch"] *= 2
    with pytest.raises(InvalidPlan, match="changed by hand"):
        run(price, "-", stdin=json.dumps(planned))
