"""A training that was killed ends with the same policy as one that was not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from planner.errors import Infeasible, InvalidPolicy
from planner.model.catalogue import find_model
from planner.policy.weights import CARD, WEIGHTS, load_policy
from planner.training.checkpoint_file import CHECKPOINT
from planner.training.curriculum import curriculum_of
from planner.training.judge import judged_again
from planner.training.run import Training
from planner.training.settings import TrainingSettings
from tests.refusals import refused

ARGUMENTS = ("--model", "tiny-llama", "--groups", "160", "--compositions", "8", "--seed", "3")
LONGEST_S = 240


def train(folder, *more):
    code = (
        "from planner.program import run; from heddle.commands.train_policy import train_policy; "
    )
    code += "run(train_policy)"
    return subprocess.Popen(
        [sys.executable, "-c", code, *ARGUMENTS, "--output-path", str(folder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_at(process, line):
    """SIGKILL as soon as it has said a line that begins like this."""
    assert any(said.startswith(line) for said in process.stderr), f"it never said {line!r}"
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.system
def test_a_training_killed_twice_ends_with_the_same_weights_bit_for_bit(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = train(whole)
    assert done.wait(LONGEST_S) == 0, done.communicate()
    done.communicate()
    for line in ("cloning 8/", "improving 3/"):
        more = ("--resume",) if (cut / CHECKPOINT).exists() else ()
        kill_at(train(cut, "--keep-every-s", "0.02", *more), line)
        assert (cut / CHECKPOINT).exists()
        assert not (cut / WEIGHTS).exists(), "it had ended before it was killed"
    last = train(cut, "--resume")
    assert last.wait(LONGEST_S) == 0, last.communicate()
    last.communicate()
    assert (cut / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    assert load_policy(cut).card.evaluation == load_policy(whole).card.evaluation
    assert judged_again(load_policy(whole), TrainingSettings()) == load_policy(whole).card
    assert not (cut / CHECKPOINT).exists()
    assert (cut / CARD).exists()


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"seed": 4}, {"best_of": 1}])
def test_a_training_is_not_resumed_with_other_settings(tmp_path, curriculum, change):
    settings = {"groups": 32, "rollouts": 4, "together": 8, "compositions": 8, "teacher_steps": 50}
    before = Training(curriculum, TrainingSettings(**settings), tmp_path)
    before.keep()
    with refused(InvalidPolicy, "Mismatch", next(iter(change))):
        Training(curriculum, TrainingSettings(**{**settings, **change}), tmp_path).resume()


@pytest.mark.slow
def test_a_model_that_fits_nowhere_is_not_trained(tmp_path):
    settings = TrainingSettings(groups=16, compositions=2, teacher_steps=20)
    curriculum = curriculum_of(find_model("deepseek-v3-like"), ("a5000",), settings)
    with pytest.raises(Infeasible):
        Training(curriculum, settings, tmp_path).run(print, "", 60.0)


def test_without_a_state_on_disk_there_is_nothing_to_resume(tmp_path, curriculum):
    training = Training(curriculum, TrainingSettings(compositions=8), tmp_path)
    with pytest.raises(InvalidPolicy) as refusal:
        training.resume()
    assert refusal.value.field == "resume"


def test_a_state_that_is_not_what_was_written_is_refused(tmp_path, curriculum):
    settings = TrainingSettings(compositions=8)
    training = Training(curriculum, settings, tmp_path)
    training.keep()
    file = tmp_path / CHECKPOINT
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with refused(InvalidPolicy, "Damaged", "resume"):
        training.resume()
    file.write_bytes(content[:10])
    with refused(InvalidPolicy, "Damaged", "resume"):
        training.resume()
