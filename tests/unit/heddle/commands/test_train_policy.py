"""`heddle train-policy`: what it refuses, and what it prints."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from heddle.cli.progress import progress_bar
from heddle.commands.train_policy import _Display, train_policy
from planner.errors import InvalidPolicy, InvalidRequest, InvalidWorkload, UnprofiledConfiguration
from planner.policy.weights import load_policy
from planner.training.trainer import TrainingStep
from tests.refusals import refused

SHORT = ("--groups", "16", "--compositions", "4", "--teacher-steps", "20", "--keep-every-s", "0")


def run(*arguments):
    given = {"catch_exceptions": False, "standalone_mode": False}
    return CliRunner().invoke(train_policy, arguments, **given)


@pytest.mark.parametrize(
    ("arguments", "error", "mistake"),
    [
        (("--model", "gpt-9"), InvalidWorkload, ("Unknown", None)),
        (
            ("--model", "tiny-llama", "--types", "h999"),
            UnprofiledConfiguration,
            ("Unknown", None),
        ),
        (("--model", "tiny-llama", "--resume"), InvalidPolicy, ("Missing", "resume")),
    ],
)
def test_what_cannot_be_trained_is_refused_before_it_begins(tmp_path, arguments, error, mistake):
    with refused(error, *mistake):
        run(*arguments, *SHORT, "--output-path", str(tmp_path / "policy"))


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with refused(InvalidRequest, "Unwritable"):
        run("--model", "tiny-llama", "--output-path", str(tmp_path / "file" / "policy"))


@pytest.mark.parametrize("named", [True, False])
def test_a_folder_that_holds_files_is_not_written_over(tmp_path, monkeypatch, named):
    folder = tmp_path / "policy-tiny-llama"
    folder.mkdir()
    (folder / "card.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    out = ("--output-path", str(folder)) if named else ()
    with refused(InvalidRequest, "Taken"):
        run("--model", "tiny-llama", *SHORT, *out)
    assert (folder / "card.json").read_text() == "{}"


@pytest.mark.slow
def test_a_model_of_a_config_file_is_trained_into_a_folder_of_its_name(tmp_path, monkeypatch):
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_hidden_layers": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
    }
    (tmp_path / "small").mkdir()
    path = tmp_path / "small" / "config.json"
    path.write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    done = run("--model", str(path), "--types", "h100,a100-40", *SHORT)
    assert "--policy policy-small" in done.stdout
    card = load_policy(tmp_path / "policy-small").card
    title, head, few, many = done.stdout.splitlines()[:4]
    assert card.evaluation["on"] in title
    assert head.split() == ["best", "of", "mean", "worst"]
    for row, rollouts in ((few, "16"), (many, "128")):
        mean = card.evaluation[f"best_of_{rollouts}_percent"]["mean"]
        assert row.split()[:2] == [rollouts, f"{mean:.1f}"]
    assert card.model == "small"


@pytest.mark.parametrize("name", ["--without", "--blind-to-batch", "--together", "--revisions"])
def test_settings_that_no_user_measured_are_no_options(name):
    assert name not in CliRunner().invoke(train_policy, ("--help",)).output


@pytest.mark.parametrize("seconds", ["nan", "inf"])
def test_states_are_kept_every_so_many_seconds(tmp_path, seconds):
    folder = tmp_path / "policy"
    with refused(InvalidRequest, "OutOfRange", "--keep-every-s"):
        run("--model", "tiny-llama", "--output-path", str(folder), *SHORT[:-1], seconds)
    assert not folder.exists()


@pytest.mark.slow
def test_a_short_training_writes_a_policy_and_says_how_good_it_is(tmp_path):
    folder = tmp_path / "policy"
    done = run("--model", "tiny-llama", "--output-path", str(folder), *SHORT, "--output", "json")
    said = json.loads(done.stdout)
    card = load_policy(folder).card
    assert said == json.loads(json.dumps(card.to_json()))
    assert card.types == ("demo-fast", "demo-slow")
    assert card.num_compositions == 4
    assert [path.name for path in sorted(folder.iterdir())] == ["card.json", "weights.safetensors"]


@pytest.mark.slow
def test_a_policy_is_no_worth_of_0_percent_before_it_is_evaluated(capsys):
    step = TrainingStep(phase="improve", done=3, total=32, entropy=0.17)
    with progress_bar() as bar:
        display = _Display(bar)
        display.show(step)
        display.show(TrainingStep(phase="teach", done=4, total=40))
        display.show(replace(step, last=91.0, best=92.5))
    assert capsys.readouterr().err.splitlines() == [
        "improving 3/32 not evaluated yet, entropy 0.17",
        "teachers 4/40",
        "improving 3/32 best of 16 91.0 % (best so far 92.5 %), entropy 0.17",
    ]


@pytest.mark.slow
def test_ctrl_c_says_how_the_training_goes_on(tmp_path):
    command = [sys.executable, "-m", "heddle", "train-policy", "--model", "tiny-llama"]
    where = ["--output-path", str(tmp_path / "policy")]
    with subprocess.Popen([*command, *where], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("teachers"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "with --resume goes on from" in said


def test_importing_the_command_does_not_import_torch():
    code = "import sys, heddle.commands.train_policy; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
