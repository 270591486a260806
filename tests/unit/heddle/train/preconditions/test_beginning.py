"""train/preconditions/beginning.py: a checkpoint that a run takes is named, any other refused."""

from __future__ import annotations

import pytest

from heddle.train.choices import TrainOptions, choose
from heddle.train.preconditions.beginning import beginning
from heddle.train.preconditions.refusals import refusals
from heddle_operator.apis.errors import InvalidJob
from tests.builders import tiled
from tests.checkpoints import State, of_a_job, save
from tests.refusals import refused
from tests.unit.heddle.train.test_choices import MACHINE, TINY, job_file
from tests.unit.worker.data.texts import write_pair
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.vaults.open_vault import open_vault
from worker.data.digest import data_digest

PLAN = tiled("1x6")


@pytest.fixture
def pair(tmp_path):
    """A data set whose digest a check can compare without making it."""
    return write_pair(tmp_path / "corpus", [[5, 6, 7, 8] * 500] * 8)


def job_of(tmp_path, pair, **changes):
    saves = {"spec__checkpoint": {"path": str(tmp_path / "saves")}, "spec__steps": 20}
    path = job_file(tmp_path, spec__data={"path": str(pair)}, **{**saves, **changes})
    return choose(path, TrainOptions(), MACHINE)


def saved(choices, attempt, digest=None):
    """A whole checkpoint of the job at an attempt, by the real writer."""
    training = choices.job.training
    known = of_a_job(TINY, attempt.step).model_copy(
        update={"training": training.model_dump(mode="json")}
    )
    vault = open_vault(training.checkpoint.path)
    digest = digest or data_digest(training.data)
    assert save(vault, attempt, PLAN, State(TINY, attempt.step), known, digest) is not None
    return vault


def test_a_run_without_a_checkpoint_begins_anew(tmp_path, pair):
    begins = beginning(job_of(tmp_path, pair).job, is_fresh=False)
    assert (begins.step, begins.steps_left, begins.note) == (None, 20, "")


def test_the_step_is_named_with_the_number_of_steps_that_are_left(tmp_path, pair):
    choices = job_of(tmp_path, pair)
    vault = saved(choices, Attempt(1, 8))
    assert refusals(choices, is_fresh=False, reads_weights=True) == ()
    assert beginning(choices.job, is_fresh=False).note == (
        f"the run goes on from the checkpoint of step 8 in {tmp_path}/saves/tiny and trains 12 "
        "steps; --fresh begins anew"
    )
    saved(choices, Attempt(2, 24))
    assert "and trains no step, as the job has 20 steps; --fresh" in beginning(
        choices.job, is_fresh=False
    ).note  # fmt: skip
    assert beginning(choices.job, is_fresh=True).steps_left == 20
    vault.remove(Attempt(2, 24).manifest)  # half a save counts for nothing
    assert beginning(choices.job, is_fresh=False).step == 8


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"spec__training__globalBatch": 4}, "has global_batch 20, the job has 4"),
        ({"spec__training__sequenceLength": 64}, "has sequence_length 128, the job has 64"),
        ({"spec__training__seed": 5}, "has seed 1, the job has 5"),
        ({"spec__model": {"name": "tiny-mixtral"}}, "is of another model"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused_before_the_run(tmp_path, pair, change, sentence):
    saved(job_of(tmp_path, pair), Attempt(1, 8))
    choices = job_of(tmp_path, pair, **change)
    for reads_weights in (True, False):
        (line,) = refusals(choices, is_fresh=False, reads_weights=reads_weights)
        assert line.message.startswith(
            f"step 8 in {tmp_path}/saves/tiny: the checkpoint {sentence}"
        )
        assert line.message.endswith(", or --fresh")
    assert refusals(choices, is_fresh=True, reads_weights=True) == ()


def test_a_checkpoint_of_other_data_is_refused_before_the_run(tmp_path, pair):
    choices = job_of(tmp_path, pair)
    saved(choices, Attempt(1, 8), "0123")
    with refused(InvalidJob, "Refused"):
        beginning(choices.job, is_fresh=False)


def test_a_damaged_checkpoint_gives_way_to_an_older_one_until_none_is_whole(tmp_path, pair):
    choices = job_of(tmp_path, pair)
    saved(choices, Attempt(1, 8))
    newer = tmp_path / "saves" / "tiny" / Attempt(2, 9).manifest
    newer.parent.mkdir()
    newer.write_bytes(b"{")
    assert beginning(choices.job, is_fresh=False).step == 8
    newer.rename(tmp_path / "saves" / "tiny" / Attempt(1, 8).manifest)
    with refused(InvalidJob, "Refused"):
        beginning(choices.job, is_fresh=False)


def test_a_folder_that_cannot_be_read_is_one_sentence(tmp_path, pair):
    choices = job_of(tmp_path, pair)
    (tmp_path / "saves").mkdir()
    (tmp_path / "saves" / "tiny").touch()
    with refused(InvalidJob, "Unreadable"):
        beginning(choices.job, is_fresh=False)


@pytest.mark.slow
def test_a_check_makes_pairs_of_texts_and_compares_them(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    choices = choose(
        job_file(tmp_path, spec__checkpoint={"path": str(tmp_path / "saves")}),
        TrainOptions(),
        MACHINE,
    )
    saved(choices, Attempt(1, 8), "0123")
    assert refusals(choices, is_fresh=False, reads_weights=False) == ()  # the run finds it
    (line,) = refusals(choices, is_fresh=False, reads_weights=True)
    assert "the checkpoint is of another data set" in line.message
