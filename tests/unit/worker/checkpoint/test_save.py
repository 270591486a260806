"""checkpoint/save.py: its files are those that torch's own reader reads, without a pickle."""

from __future__ import annotations

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader

from planner.model.tensors import model_tensors
from tests.builders import MOE, tiled
from tests.checkpoints import save, state
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.vaults.folder_vault import FolderVault


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
