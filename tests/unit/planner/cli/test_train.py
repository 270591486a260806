"""`heddle train-policy`: what it refuses, and what it prints."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from planner.cli.train import train_policy
from planner.errors import InvalidPolicy, InvalidRequest, InvalidWorkload, UnprofiledConfiguration
from planner.policy.schema import FILL_HEADS, HEADS
from planner.policy.weights import load_policy
from planner.training.settings import TrainingSettings

SHORT = ("--groups", "16", "--compositions", "4", "--lessons", "20", "--keep-every-s", "0")


def run(*arguments):
    given = {"catch_exceptions": False, "standalone_mode": False}
    return CliRunner().invoke(train_policy, arguments, **given)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("--model", "gpt-9"), InvalidWorkload, "'gpt-9' is unknown"),
        (("--model", "tiny-llama", "--types", "h999"), UnprofiledConfiguration, "h999"),
        (("--model", "tiny-llama", "--seed", "-1"), InvalidRequest, "must be 0 or more"),
        (("--model", "tiny-llama", "--seed", "9" * 23), InvalidRequest, "below 2,147,483,648"),
        (("--model", "tiny-llama", "--resume"), InvalidPolicy, "leave --resume out"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_it_begins(tmp_path, arguments, error, words):
    with pytest.raises(error) as caught:
        run(*arguments, *SHORT, "--folder", str(tmp_path / "policy"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="cannot be written"):
        run("--model", "tiny-llama", "--folder", str(tmp_path / "file" / "policy"))


@pytest.mark.parametrize("seconds", ["nan", "inf"])
def test_states_are_kept_every_so_many_seconds(tmp_path, seconds):
    folder = tmp_path / "policy"
    with pytest.raises(InvalidRequest, match=f"--keep-every-s is {seconds}; give a number"):
        run("--model", "tiny-llama", "--folder", str(folder), *SHORT[:-1], seconds)
    assert not folder.exists()


@pytest.mark.slow
def test_a_flat_training_writes_a_policy_that_chooses_the_fill(tmp_path):
    folder = tmp_path / "policy"
    run("--model", "tiny-llama", "--folder", str(folder), "--flat", *SHORT)
    card = load_policy(folder).card
    assert card.actions == (*HEADS, *FILL_HEADS)
    assert card.settings["uses_cloning"] is False


def test_teachers_are_not_asked_for_what_they_cannot_show():
    with pytest.raises(InvalidRequest, match="leave cloning out"):
        TrainingSettings(learns_fill=True)


@pytest.mark.slow
def test_a_short_training_writes_a_policy_and_says_how_good_it_is(tmp_path):
    folder = tmp_path / "policy"
    done = run("--model", "tiny-llama", "--folder", str(folder), *SHORT, "--output", "json")
    said = json.loads(done.stdout)
    card = load_policy(folder).card
    assert said == json.loads(json.dumps(card.to_json()))
    assert card.types == ("demo-fast", "demo-slow")
    assert card.num_compositions == 4
    assert [path.name for path in sorted(folder.iterdir())] == ["card.json", "weights.safetensors"]


@pytest.mark.slow
def test_importing_the_command_does_not_import_torch():
    code = "import sys, planner.cli.train; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
