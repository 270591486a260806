"""checkpoint/start_source.py: a checkpoint is taken by the job that saved it, whatever its plan."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from heddle_operator.epochs.chosen_checkpoint import newest_of
from planner.model.tensors import model_tensors
from planner.plans.pieces import Piece
from tests.builders import MOE, tiled
from tests.checkpoints import State, about, manifest_of, save
from tests.equal_tensors import are_equal
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.looking import look, unfit
from worker.checkpoint.manifest import InvalidManifest, digest_of
from worker.checkpoint.start_source import FirstWeights, SavedState
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.contract import Look, Restore, TrainingSpec
from worker.error_kinds import describe_error
from worker.training_settings import LossScale

ATTEMPT = Attempt(epoch=2, step=10)


def spec(**changes):
    known = {"model": "moe", "data": "text", "global_batch": 8, "sequence_length": 16, "steps": 40}
    return TrainingSpec(**known | changes)


def step_of(**changes):
    return about(MOE, 10).model_copy(
        update={"shape": MOE.to_json(), "training": spec(**changes).model_dump(mode="json")}
    )


def manifest(**changes):
    return manifest_of(step_of(**changes))


@pytest.fixture
def saved(tmp_path):
    """(the state, what names its checkpoint)."""
    vault, truth = FolderVault(tmp_path), State(MOE, 10)
    found = save(vault, ATTEMPT, tiled("2x3"), truth, step_of())
    assert found is not None
    digest = digest_of(vault.read(ATTEMPT.manifest))
    return truth, Restore(path=str(tmp_path), epoch=2, step=10, manifest=digest)


def test_every_part_is_filled_and_the_step_is_that_of_the_checkpoint(saved):
    truth, restore = saved
    source = SavedState(MOE, spec(), restore)
    assert source.progress.agreed == (10, 10, 1, 0)
    for tensor in model_tensors(MOE):
        box = Piece(tensor.name, 0, tensor.rows, 0, max(1, tensor.experts))
        parts = tuple(torch.zeros(tensor.shape) for _ in range(3))
        source.fill(tensor, box, parts)
        assert are_equal(parts, truth.read(box))


def test_another_manifest_than_the_operator_chose_is_refused(saved):
    _, restore = saved
    with pytest.raises(InvalidManifest) as refusal:
        SavedState(MOE, spec(), restore.model_copy(update={"manifest": digest_of(b"")}))
    assert refusal.value.code == "damaged"


def read_all(restore):
    """The state of a checkpoint, {tensor: parts}."""
    source, found = SavedState(MOE, spec(), restore), {}
    for tensor in model_tensors(MOE):
        box = Piece(tensor.name, 0, tensor.rows, 0, max(1, tensor.experts))
        found[tensor.name] = tuple(torch.zeros(tensor.shape) for _ in range(3))
        source.fill(tensor, box, found[tensor.name])
    return found


@pytest.mark.parametrize("fault", [Path.unlink, lambda file: os.truncate(file, 100)])
def test_a_file_that_is_missing_or_cut_sends_the_job_to_the_next_older_checkpoint(
    saved, tmp_path, fault
):
    truth, _ = saved
    newer = Attempt(epoch=2, step=20)
    save(FolderVault(tmp_path), newer, tiled("2x3"), State(MOE, 20), step_of())
    fault(sorted((tmp_path / str(newer)).glob("*.safetensors"))[1])
    asked = Look(epoch=3, training=spec(shape=MOE.to_json()))
    told = look(FolderVault(tmp_path), str(tmp_path), asked, None)

    def restore_of(one):
        return Restore(path=told.path, epoch=one.epoch, step=one.step, manifest=one.manifest)

    first = newest_of(told)
    assert first.step == 20
    with pytest.raises(InvalidManifest) as error:
        read_all(restore_of(first))
    assert error.value.code == "damaged"
    assert describe_error(error.value)[0] == "checkpoint"  # which the operator never tries again
    found = read_all(restore_of(newest_of(told, {first.manifest})))
    assert all(are_equal(found[name], parts) for name, parts in truth.parts.items())


def test_a_job_of_other_samples_is_refused_by_its_field(saved):
    _, restore = saved
    with pytest.raises(InvalidManifest) as refusal:
        SavedState(MOE, spec(global_batch=16), restore)
    assert refusal.value.code == "other"
    assert "global_batch" in str(refusal.value)


def test_a_job_of_another_model_is_refused():
    assert unfit(manifest(), MOE, spec(), "data") is None
    assert "hidden" in unfit(manifest(), replace(MOE, hidden=16), spec(), "data")


def test_a_job_of_another_data_set_is_refused():
    assert "data set" in unfit(manifest(), MOE, spec(), "other data")


@pytest.mark.parametrize("changes", [{"steps": 80}, {"learning_rate": 1e-4}, {"output": "out"}])
def test_settings_that_decide_no_sample_may_change(changes):
    assert unfit(manifest(), MOE, spec(**changes), "data") is None


@pytest.mark.parametrize(
    ("before", "scale"), [("fp16", 4096), ("bf16", 1024)], ids=["kept", "begun anew"]
)
def test_the_loss_scale_is_kept_where_the_precision_is(tmp_path, before, scale):
    vault = FolderVault(tmp_path)
    fp16 = {"precision": "fp16", "loss_scale": LossScale(initial=1024)}
    old = step_of(**(fp16 if before == "fp16" else {"precision": before}))
    old = old.model_copy(update={"loss_scale": 4096 if before == "fp16" else 1, "good_steps": 3})
    save(vault, ATTEMPT, tiled("1x3"), State(MOE, 10), old)
    digest = digest_of(vault.read(ATTEMPT.manifest))
    restore = Restore(path=str(tmp_path), epoch=2, step=10, manifest=digest)
    progress = SavedState(MOE, spec(**fp16), restore).progress
    assert (progress.loss_scale, progress.good_steps) == (scale, 3 if before == "fp16" else 0)


def test_first_weights_leave_the_moments_zero():
    tensor = model_tensors(MOE)[0]
    parts = tuple(torch.zeros(tensor.shape) for _ in range(3))
    source = FirstWeights(lambda _, start, stop, __: torch.ones(stop - start, *tensor.shape[1:]))
    source.fill(tensor, Piece(tensor.name, 0, tensor.rows), parts)
    assert source.progress.step == 0
    assert parts[0].all()
    assert not any(part.any() for part in parts[1:])
