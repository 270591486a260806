"""The command evaluate: it measures, goes on where it was, and refuses in one sentence."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from click.testing import CliRunner

from benchmarks.evaluation.command import METHODS, evaluate_command, read_methods, trained_on
from planner.errors import HeddleError, InvalidRequest
from planner.model.catalogue import find_model
from planner.policy.schema import FeatureSchema
from planner.policy.weights import digest_of, weights_content, write_policy
from planner.training.compositions import DEMO_TYPES, training_compositions, usual_types
from planner.training.curriculum import curriculum_of
from planner.training.settings import TrainingSettings
from tests.unit.planner.policy.conftest import untrained
from tests.unit.planner.policy.test_card import CARD

QUICK = "--model tiny-llama --budget-evaluations 40 --reference-s 0 --policy none"


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder with a file of two compositions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.txt").write_text("demo-fast=1x2 name=two\ndemo-fast=1x3 batch=32\n")
    return tmp_path


def run(line: str) -> str:
    result = CliRunner().invoke(evaluate_command, shlex.split(line), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(line: str) -> str:
    result = CliRunner().invoke(evaluate_command, shlex.split(line))
    assert isinstance(result.exception, HeddleError), result.output
    return str(result.exception)


def test_it_prints_json_of_every_composition_and_method(small):
    text = run(f"{QUICK} --compositions small.txt --methods search,columns --output json")
    data = json.loads(text)
    assert [row["name"] for row in data["compositions"]] == ["two", "demo-fast=1x3"]
    assert [row["batch"] for row in data["compositions"]] == [20, 32]
    assert [one["method"] for one in data["summary"]] == ["search", "columns"]
    assert data["training_compositions"] > 0
    for row in data["compositions"]:
        assert row["nearest_training"]["composition"].startswith("demo-")


def test_it_prints_tables_and_keeps_references_and_draws(small):
    line = f"{QUICK} --compositions small.txt --methods search --references best.json"
    text = run(f"{line} --picture curves.svg --curve-evaluations 20")
    assert "nearest training" in text
    assert "% of reference" in text
    assert len(json.loads((small / "best.json").read_text())) == 2
    assert (small / "curves.svg").read_text().startswith("<?xml")
    run(line)
    assert len(json.loads((small / "best.json").read_text())) == 2


def test_where_nothing_could_be_planned_the_reason_is_an_error(small):
    (small / "mistyped.txt").write_text("demo-fats=1x2\n")
    line = f"{QUICK} --methods search --compositions"
    lost = refused(f"{line} mistyped.txt")
    assert "no method planned any composition; the first: none of the GPU types demo-fats" in lost
    (small / "mixed.txt").write_text("demo-fats=1x2\ndemo-fast=1x2\n")
    assert "none of the GPU types demo-fats" in run(f"{line} mixed.txt")
    for number in ("nan", "inf"):
        assert f"--reference-s is {number}" in refused(f"{line} mixed.txt --reference-s {number}")


def test_what_was_measured_is_printed_though_the_picture_cannot_be_written(small):
    (small / "curves.svg").symlink_to("/dev/full")
    line = f"{QUICK} --methods search --compositions small.txt --picture curves.svg"
    done = CliRunner().invoke(evaluate_command, shlex.split(line))
    assert "cannot be written" in str(done.exception)
    assert "% of reference" in done.output


def test_the_usual_methods_are_known():
    assert ",".join(read_methods(METHODS)) == METHODS
    assert read_methods(" search,columns, search ") == ("search", "columns")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("serch", r"the method 'serch' is unknown \(did you mean 'search'\?\); there are auto, "),
        ("search,oracle", "the method 'oracle' is unknown; there are auto, "),
        (",", "--methods names no method; there are auto, "),
    ],
)
def test_a_method_that_is_unknown_is_refused(text, found):
    with pytest.raises(InvalidRequest, match=found):
        read_methods(text)


def test_what_cannot_be_evaluated_is_refused_in_one_sentence(small):
    (small / "empty.txt").write_text("# nothing\n")
    (small / "wrong.txt").write_text("demo-fast=1x2\ndemo-fast=x\n")
    assert "gone.txt cannot be read" in refused(f"{QUICK} --compositions gone.txt")
    assert "empty.txt holds no composition" in refused(f"{QUICK} --compositions empty.txt")
    assert "wrong.txt, line 2: 'demo-fast=x'" in refused(f"{QUICK} --compositions wrong.txt")
    unknown = refused("--model gpt-9 --compositions small.txt")
    assert "gpt-9" in unknown
    assert "'best'" in refused(f"{QUICK} --compositions small.txt --methods best")
    assert "no policy in none" in refused(f"{QUICK} --compositions small.txt --methods auto")
    (small / "other.json").write_text("{}")
    searched = f"{QUICK} --compositions small.txt --methods search"
    lost = refused(f"{searched} --references other.json")
    assert "other.json cannot be read" in lost
    for option in ("--picture gone/curves.svg", "--picture .", "--references gone/best.json"):
        assert "cannot be written" in refused(f"{searched} {option}")


@pytest.mark.parametrize("option", ["--model tiny-llama", "--compositions small.txt"])
def test_model_and_compositions_must_be_given(option):
    result = CliRunner().invoke(evaluate_command, shlex.split(option))
    assert result.exit_code == 2
    assert "Missing option" in result.output


@pytest.fixture
def policy(tmp_path):
    """A function that writes an untrained policy whose card names a training set."""

    def write(num_compositions: int, digest: str):
        schema = FeatureSchema(DEMO_TYPES, (1, 2), 6, 8)
        content = weights_content(untrained(schema).weights)
        card = replace(
            CARD,
            model="tiny-llama",
            types=DEMO_TYPES,
            tp_degrees=(1, 2),
            d_max=6,
            features=schema.digest,
            weights=digest_of(content),
            num_compositions=num_compositions,
            training_set=digest,
        )
        write_policy(tmp_path / "policy", card, content)
        return tmp_path / "policy"

    return write


@pytest.mark.slow
def test_nearest_are_the_compositions_that_the_policy_was_trained_on(policy):
    shape = find_model("tiny-llama")
    curriculum = curriculum_of(shape, DEMO_TYPES, TrainingSettings(compositions=5))
    trained = trained_on(shape, policy(5, curriculum.digest))
    assert trained == tuple(question.composition for question in curriculum.training)
    assert len(trained) == 5


def test_a_training_set_that_cannot_be_made_again_is_not_guessed(policy):
    assert trained_on(find_model("tiny-llama"), policy(5, "another")) == ()


def test_without_a_policy_nearest_are_the_standard_compositions(tmp_path):
    found = trained_on(find_model("qwen3-64b"), tmp_path)
    assert found == training_compositions(usual_types("qwen3-64b"), 0)
