"""checkpoint/save.py: its files are those that torch's own reader reads, without a pickle."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader

from planner.model.tensors import model_tensors
from tests.builders import MOE, tiled
from tests.checkpoints import of_a_job, save, state
from tests.fakes.vault import MemoryVault
from worker.checkpoint.attempts import Attempt, complete
from worker.checkpoint.boxes import written
from worker.checkpoint.manifest import InvalidManifest
from worker.checkpoint.save import commit, save_part
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.checkpoint.vaults.vault import VaultFailed


def test_torch_reads_the_whole_state_from_the_files(tmp_path):
    attempt, truth = Attempt(epoch=1, step=10), state(MOE, 10)
    plan = tiled("2x1 4x2", ep=2, etp=2, replicas=2)
    assert save(FolderVault(tmp_path), attempt, plan, truth) is not None
    target = {
        tensor.name + suffix: torch.empty(tensor.shape)
        for tensor in model_tensors(MOE)
        for suffix in ("", "/exp_avg", "/exp_avg_sq")
    }
    reader = HuggingFaceStorageReader(str(tmp_path / str(attempt)))
    dcp.load(target, storage_reader=reader, no_dist=True)
    for name, numbers in truth.parts.items():
        for suffix, part in zip(("", "/exp_avg", "/exp_avg_sq"), numbers, strict=True):
            assert torch.equal(target[name + suffix], part)


class FullVault(MemoryVault):
    """Has room for two files."""

    def put(self, name, chunks, num_bytes):
        if len(self.names()) == 2:
            raise VaultFailed(f"{name}: No space left on device", "full")
        super().put(name, chunks, num_bytes)


def test_a_save_that_failed_leaves_no_file_on_a_full_disk():
    vault, attempt, mine = FullVault(), Attempt(epoch=1, step=10), written(MOE, tiled("2x3"))[0]
    with pytest.raises(VaultFailed, match="No space"):
        save_part(vault, attempt, 0, MOE, mine, state(MOE, 10).chunks)
    assert vault.names() == ()


def test_parts_of_two_runs_never_become_one_checkpoint():
    vault, attempt, pieces = MemoryVault(), Attempt(epoch=1, step=10), written(MOE, tiled("2x3"))
    for rank, run in enumerate(("first", "second")):
        save_part(vault, attempt, rank, MOE, pieces[rank], state(MOE, 10 + rank).chunks, run)
    for run in ("first", "second"):
        with pytest.raises(InvalidManifest) as refusal:
            commit(vault, attempt, len(pieces), MOE, of_a_job(MOE, 10, run=run), "data")
        assert refusal.value.code == "other"
    assert complete(vault.names()) == ()


def test_the_checkpoint_of_another_run_is_no_save_of_this_one():
    vault, attempt, plan = MemoryVault(), Attempt(epoch=1, step=10), tiled("2x3")
    first, second = (of_a_job(MOE, 10, run=run) for run in ("first", "second"))
    assert save(vault, attempt, plan, state(MOE, 10), first) is not None
    assert save(vault, attempt, plan, state(MOE, 10), first) is None
    with pytest.raises(InvalidManifest) as refusal:
        save(vault, attempt, plan, state(MOE, 10), second)
    assert refusal.value.code == "other"


@pytest.mark.parametrize(("part", "run"), [(None, "mine"), ("mine", None)])
def test_a_part_or_a_job_without_the_id_of_a_run_is_taken(part, run):
    vault, attempt, pieces = MemoryVault(), Attempt(epoch=1, step=10), written(MOE, tiled("2x3"))
    for rank, mine in pieces.items():
        save_part(vault, attempt, rank, MOE, mine, state(MOE, 10).chunks, part)
    assert commit(vault, attempt, len(pieces), MOE, of_a_job(MOE, 10, run=run), "data") is not None
