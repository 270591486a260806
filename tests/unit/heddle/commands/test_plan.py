"""The commands plan and price: they explain themselves, agree, and refuse in one sentence."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner

from heddle.commands.cost import cost
from heddle.commands.plan import plan, request_of
from planner.cluster.composition import Composition
from planner.errors import (
    HeddleError,
    Infeasible,
    InvalidComposition,
    InvalidPlan,
    InvalidRequest,
    InvalidWorkload,
    IrregularPlan,
    NoPolicy,
    UnprofiledConfiguration,
)
from planner.request import PlanRequest
from tests.refusals import refused

QUICK = "--budget-evaluations 300"
FIVE = f"--composition demo-fast=1x2+1x3 --min-holders 2 {QUICK}"
TWO_GPUS = "--composition demo-fast=1x2"
TWO = f"{TWO_GPUS} {QUICK}"
MANY = f"--model llama3-8b --composition h100=4x8 {QUICK}"
TINY = '{"model": "tiny-llama", "global_batch": 32, "sequence_length": 128}'


def run(command, line: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(command, shlex.split(line), input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def answer(line: str = FIVE) -> dict:
    return json.loads(run(plan, f"{line} --output json"))


@pytest.mark.slow
def test_plan_without_arguments_explains_itself_with_an_example_that_runs():
    text = run(plan, "")
    example = next(line.strip() for line in text.splitlines() if "heddle plan --comp" in line)
    assert "samples/s" in run(plan, example.removeprefix("heddle plan "))


def test_price_of_a_plan_agrees_with_the_plan_bit_for_bit():
    planned = run(plan, f"{FIVE} --output json")
    priced = json.loads(run(cost, "- --output json", stdin=planned))
    for key in ("iteration_s", "simulated_s", "throughput_samples_s", "digest", "profile_digest"):
        assert priced[key] == json.loads(planned)[key]


def test_tables_name_what_json_holds():
    text = run(plan, FIVE)
    assert f"{answer()['throughput_samples_s']:.1f} samples/s" in text
    assert "profile modelled" in text
    text = run(cost, "-", stdin=json.dumps(answer()))
    assert "formula" in text
    assert "simulated" in text


def test_a_nodes_file_says_the_same_as_text(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(json.dumps(answer()["composition"]))
    again = answer(f"--nodes {path} --min-holders 2 {QUICK}")
    assert again["digest"] == answer()["digest"]


def test_a_node_can_be_left_out_and_the_others_keep_what_they_hold(tmp_path):
    path = tmp_path / "current.json"
    path.write_text(json.dumps(answer()))
    rest = answer(f"{FIVE} --exclude demo-fast-0 --current {path}")
    assert {row["node"] for row in rest["placement"]} == {"demo-fast-1"}
    assert rest["bytes_to_move"] == 0


def test_the_answer_is_never_slower_than_the_current_plan_and_says_what_moves(tmp_path):
    path = tmp_path / "current.json"
    path.write_text(json.dumps(answer(TWO)))
    grown = answer(f"--composition demo-fast=1x2+1x3 {QUICK} --current {path}")
    assert grown["throughput_samples_s"] >= json.loads(path.read_text())["throughput_samples_s"]
    assert grown["bytes_to_move"] > 0


def test_a_plan_can_be_priced_on_another_composition(tmp_path):
    planned = answer(TWO)
    path = tmp_path / "nodes.yaml"
    path.write_text("- {name: demo-fast-0, type: demo-fast, gpus: 2, speed_factor: 0.5}\n")
    line = f"- --nodes {path} --output json"
    priced = json.loads(run(cost, line, stdin=json.dumps(planned)))
    assert priced["iteration_s"] > 1.5 * planned["iteration_s"]


def test_the_usual_settings_are_those_of_the_paper_and_of_the_demo():
    assert answer(TWO)["workload"]["global_batch"] == 20
    line = f"--model llama3-8b --composition h100=1x8 --max-stages 2 {QUICK}"
    asked = answer(line)["workload"]
    assert (asked["global_batch"], asked["sequence_length"]) == (2048, 2048)
    assert (asked["precision"], asked["zero"], asked["recompute"]) == ("fp16", 0, "none")
    options = "--batch 64 --seq-len 1024 --precision bf16 --zero 1 --recompute selective"
    asked = answer(f"{line} {options} --sequence-parallel")["workload"]
    assert (asked["global_batch"], asked["sequence_length"]) == (64, 1024)
    assert (asked["precision"], asked["zero"], asked["recompute"]) == ("bf16", 1, "selective")
    assert asked["sequence_parallel"] is True


def asked(*options: str) -> PlanRequest:
    """What the command would ask the planner."""
    command = plan.make_context("plan", [*shlex.split(TWO), *options])
    wishes = {k: v for k, v in command.params.items() if k not in NO_WISHES}
    return request_of(Composition.from_text("demo-fast=1x2"), wishes)


NO_WISHES = ("text", "nodes", "exclude", "profiles", "output", "picture", "export", "diff")


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--method columns", "method", "columns"),
        ("--method search", "method", "search"),
        ("--objective throughput", "objective", "throughput"),
        ("--min-throughput 7.5", "min_throughput", 7.5),
        ("--max-price 9", "max_price", 9.0),
        ("--no-ep", "allow_ep", False),
        ("", "allow_ep", True),
        ("--marginal", "wants_marginal", True),
        ("--budget-s 0.5", "budget_s", 0.5),
        ("", "budget_s", None),
        ("--seed 5", "seed", 5),
        ("--max-stages 3", "max_stages", 3),
        ("", "max_templates", 8),
        ("--max-templates 2", "max_templates", 2),
        ("--min-holders 2", "min_holders", 2),
    ],
)
def test_every_wish_reaches_the_planner(options, field, value):
    assert getattr(asked(*shlex.split(options)), field) == value


@pytest.mark.parametrize("how", ["none", "selective", "full", "auto"])
def test_recomputation_reaches_the_planner(how):
    assert asked("--recompute", how).workload.recompute == how


def test_without_a_budget_the_search_has_the_one_of_the_planner():
    context = plan.make_context("plan", ["--composition", "demo-fast=1x2"])
    wishes = {k: v for k, v in context.params.items() if k not in NO_WISHES}
    request = request_of(Composition.from_text("demo-fast=1x2"), wishes)
    assert (request.most_seconds, request.most_evaluations) == (2.0, 3000)


def test_prices_turn_into_money(tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("demo-fast: 2.5\nh100: 4\n")
    found = answer(f"{FIVE} --objective cost --prices {prices}")
    used = {row["node"] for row in found["placement"]}
    gpus = {node["name"]: node["gpus"] for node in found["composition"]}
    assert found["price_per_hour"] == 2.5 * sum(gpus[name] for name in used)
    per_second = found["price_per_hour"] / 3600
    assert found["money_per_sample"] == pytest.approx(per_second / found["throughput_samples_s"])
    assert "an hour" in run(plan, f"{FIVE} --max-price 100 --prices {prices}")
    assert "price_per_hour" not in answer()
    fastest = answer(f"{FIVE} --prices {prices}")
    assert fastest["price_per_hour"] == 12.5
    assert fastest["digest"] == answer()["digest"]


def test_a_gpu_type_without_a_profile_is_named_before_the_search():
    done = CliRunner().invoke(plan, shlex.split(f"{TWO_GPUS},demo-fats=1x2,h100=2x4 {QUICK}"))
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "Warning: GPU type 'demo-fats' has no profile for tiny-llama (did you mean 'demo-fast'?); "
        "1 node of it with 2 GPUs will be idle",
        "Warning: GPU type 'h100' has no profile for tiny-llama; 2 nodes of it with 8 GPUs will be "
        "idle",
    ]


def test_nodes_may_bring_their_own_price_and_network_card(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(
        "- {name: a, type: demo-fast, gpus: 1, price: 7, nic_gbit_s: 0.01}\n"
        "- {name: b, type: demo-fast, gpus: 1, price: 7}\n"
    )
    planned = run(plan, f"--nodes {path} {QUICK} --objective cost --output json")
    found = json.loads(planned)
    assert found["price_per_hour"] in (7, 14)
    assert found["composition"][0]["nic_gbit_s"] == 0.01
    priced = json.loads(run(cost, "- --output json", stdin=planned))
    assert priced["iteration_s"] == found["iteration_s"]


def test_one_more_node_is_priced_when_asked():
    found = answer(f"{TWO} --marginal")["marginal"]
    assert [set(row) for row in found] == [{"gpu_type", "gpus", "gain_samples_s"}]
    assert "one more node of 2 demo-fast adds" in run(plan, f"{TWO} --marginal")
    assert "marginal" not in answer(TWO)


def test_two_plans_are_compared_as_table_and_as_json(tmp_path):
    small, large = tmp_path / "a.json", tmp_path / "b.json"
    small.write_text(json.dumps(answer(TWO)))
    large.write_text(json.dumps(answer(FIVE)))
    found = json.loads(run(plan, f"--diff {small} {large} --output json"))
    assert found["from"]["digest"] == answer(TWO)["digest"]
    assert found["bytes_to_move"] == sum(move["bytes"] for move in found["moves"]) > 0
    assert {move["to"] for move in found["moves"]} <= {"demo-fast-0", "demo-fast-1"}
    assert f"{found['bytes_to_move']:,} bytes move" in run(plan, f"--diff {small} {large}")
    moved = answer(f"{FIVE} --current {small}")
    assert moved["bytes_to_move"] <= found["bytes_to_move"]


def test_a_picture_of_the_plan_is_drawn(tmp_path):
    path = tmp_path / "plan.svg"
    run(plan, f"{FIVE} --picture {path}")
    assert f"plan {answer()['digest']}" in path.read_text()


def test_a_regular_plan_is_handed_to_megatron():
    line = "--model llama3-8b --composition h100=1x8 --batch 64 --max-templates 1 --max-stages 1"
    text = run(plan, f"{line} {QUICK} --export megatron")
    assert text.startswith("# h100, 1 x 8 GPUs (h100-0)\n")
    assert "--tensor-model-parallel-size" in text
    assert "--global-batch-size 64" in text


def test_an_irregular_plan_is_not():
    with pytest.raises(IrregularPlan):
        run(plan, f"{FIVE} --export megatron")


PRICED = "--composition demo-fast=1x2 --objective cost --prices"


@pytest.mark.parametrize(
    ("line", "error", "mistake"),
    [
        ("--composition demo-fast=1by2", InvalidComposition, ("Malformed", None)),
        ("--composition demo-fast=0x2", InvalidComposition, ("OutOfRange", None)),
        ("--composition demo-fast=1x2 --nodes n.yaml", InvalidComposition, ("Contradiction", None)),
        ("--nodes missing.yaml", InvalidComposition, ("Unreadable", None)),
        ("--model llama3-8b", InvalidComposition, ("Missing", "composition")),
        (f"{TWO} --exclude nobody", InvalidComposition, ("Unknown", "exclude")),
        (f"{TWO} --exclude demo-fast-0", InvalidComposition, ("OutOfRange", "exclude")),
        (f"{TWO} --model gpt-9", InvalidWorkload, ("Unknown", None)),
        (f"{TWO} --batch 0", InvalidWorkload, ("OutOfRange", None)),
        (f"{TWO} --seq-len 64", UnprofiledConfiguration, ("Mismatch", None)),
        (f"{TWO} --profile nowhere", UnprofiledConfiguration, ("Missing", None)),
        (f"{TWO} --current missing.json", InvalidPlan, ("Unreadable", None)),
        (f"{TWO_GPUS} --method policy --policy nowhere", NoPolicy, ("Missing", None)),
        (f"{TWO} --method search --rollouts 5", InvalidRequest, ("Contradiction", "--rollouts")),
        (f"{TWO} --threads 4", InvalidRequest, ("Contradiction", "--threads")),
        (f"{TWO} --method search --policy x", InvalidRequest, ("Contradiction", "--policy")),
        (
            f"{TWO_GPUS} --method policy --budget-s 3",
            InvalidRequest,
            ("Contradiction", "--budget-s"),
        ),
        (f"{TWO} --min-throughput 1e9", Infeasible, ("OutOfRange", "min_throughput")),
        (f"{MANY} --min-throughput 1e9", Infeasible, ("OutOfRange", "min_throughput")),
        (f"{TWO} --objective cost", InvalidComposition, ("PriceMissing", "prices")),
        (f"{TWO} --max-price 5", InvalidComposition, ("PriceMissing", "prices")),
        (f"{PRICED} missing.yaml", InvalidComposition, ("Unreadable", None)),
        (f"{TWO} --picture no/such/x.svg", InvalidRequest, ("Unwritable", None)),
        (f"{TWO} --picture x.png", InvalidRequest, ("Unwritable", None)),
        (f"{TWO} {TWO_GPUS}", InvalidRequest, ("GivenTwice", "--composition")),
        ("--nodes a.yaml --nodes b.yaml", InvalidRequest, ("GivenTwice", "--nodes")),
        ("--model tiny-llama --composition dem-fast=1x2", Infeasible, ("", None)),
        (f"{TWO} --export megatron --output json", InvalidRequest, ("Contradiction", None)),
        ("--diff a.json b.json", InvalidPlan, ("Unreadable", None)),
        (f"--diff a.json b.json {TWO}", InvalidRequest, ("Contradiction", "--budget-evaluations")),
        ("--composition demo-fast=1x1", Infeasible, ("", None)),
        ("--composition h100=1x1", Infeasible, ("", None)),
    ],
)
def test_bad_input_is_one_sentence(line, error, mistake):
    with refused(error, *mistake):
        run(plan, line)


@pytest.mark.parametrize(
    "prices",
    [
        *("- 1", "{}", "h100: cheap", "h100: -1", "h100: true", "3: 4", "h100: .inf", "{"),
        *("h100: 1\nh100: 2", f"h100: 1{'0' * 400}"),
    ],
)
def test_a_wrong_prices_file_is_one_sentence(tmp_path, prices):
    path = tmp_path / "prices.yaml"
    path.write_text(prices)
    with pytest.raises(InvalidComposition) as caught:
        run(plan, f"{PRICED} {path}")
    assert caught.value.code in ("Malformed", "Unreadable")


def test_a_prices_file_that_is_empty_has_nothing(tmp_path):
    path = tmp_path / "prices.yaml"
    path.touch()
    with refused(InvalidComposition, "Malformed", "prices"):
        run(plan, f"{PRICED} {path}")


@pytest.mark.parametrize(
    "content", ["no json", "[]", "{}", '{"templates": [], "placement": 3}', "\x00"]
)
def test_an_unreadable_current_plan_is_one_sentence(tmp_path, content):
    path = tmp_path / "current.json"
    path.write_text(content)
    with pytest.raises(InvalidPlan) as caught:
        run(plan, f"{TWO} --current {path}")
    assert "\n" not in str(caught.value)


def test_a_current_plan_of_another_model_is_refused(tmp_path):
    path = tmp_path / "current.json"
    current = answer(TWO)
    current["workload"]["model"]["name"] = "llama3-8b"
    path.write_text(json.dumps(current))
    with refused(InvalidPlan, "Mismatch", "current"):
        run(plan, f"{TWO} --current {path}")


@pytest.mark.parametrize(
    "line",
    [
        "--budget-s 0",
        "--budget-s -1",
        "--budget-evaluations 0",
        "--max-templates 0",
        "--max-stages 0",
        "--min-holders 0",
        "--min-throughput 0",
        "--max-price -1",
        "--method guess",
        "--objective fame",
        "--recompute some",
        "--zero 3",
        "--batch many",
        "--export deepspeed",
        "--diff one.json",
    ],
)
def test_an_option_out_of_its_range_ends_with_2_and_says_so(line):
    result = CliRunner().invoke(plan, shlex.split(f"--composition demo-fast=1x2 {line}"))
    assert result.exit_code == 2
    assert result.stderr.count("Error: ") == 1
    assert "Traceback" not in result.stderr


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
        run(cost, "-", stdin=stdin)
    assert "\n" not in str(caught.value)


def test_a_plan_changed_by_hand_is_refused():
    planned = answer()
    planned["templates"][0]["micro_batch"] *= 2
    with refused(InvalidPlan, "Damaged", "digest"):
        run(cost, "-", stdin=json.dumps(planned))


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"workload": "x"}, ("Malformed", None)),
        ({"templates": [{"replicas": -1}]}, ("Contradiction", "micro_batches")),
        ({"placement": [], "digest": None}, ("Mismatch", "current")),
    ],
)
def test_a_current_plan_whose_file_was_broken_is_refused(tmp_path, change, mistake):
    path = tmp_path / "plan.json"
    data = answer(TWO)
    for row in change.get("templates", ()):
        data["templates"][0] |= row
    data |= {name: value for name, value in change.items() if name != "templates"}
    path.write_text(json.dumps(data))
    with refused(HeddleError, *mistake):
        run(plan, f"{TWO} --current {path}")
