"""A process that is killed while it saves: a whole checkpoint is there, every bit of it."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from planner.model.tensors import model_tensors
from planner.plans.pieces import Piece
from tests.builders import MOE, tiled
from tests.checkpoints import save, state
from worker.checkpoint.attempts import Attempt, complete, outdated
from worker.checkpoint.load import Checkpoint, Newest, newest
from worker.checkpoint.vaults.folder_vault import FolderVault

pytestmark = pytest.mark.slow
KILLS = 20
PLAN = tiled("2x1 1x2")
STEPS = 4  # states of so many steps, saved in turn
LONGEST_S = 0.3


def saves_for_ever(folder, epoch):
    """Save step after step, and keep two."""
    vault = FolderVault(folder)
    for step in range(1, 10_000):
        save(vault, Attempt(epoch, step), PLAN, state(MOE, step % STEPS))
        for name in outdated(vault.names(), last=2):
            vault.remove(name)


def killed_while_it_saves(folder, epoch, after_s):
    pid = os.fork()
    if pid == 0:
        try:
            saves_for_ever(folder, epoch)
        finally:
            os._exit(1)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    for step in range(STEPS):
        state(MOE, step)  # made before the forks
    vault, choose, cut = FolderVault(tmp_path), random.Random(4), 0
    save(vault, Attempt(1, 1), PLAN, state(MOE, 1))
    for epoch in range(2, 2 + KILLS):
        before = newest(vault)
        killed_while_it_saves(tmp_path, epoch, choose.uniform(0.0, LONGEST_S))
        found = newest(vault)
        assert isinstance(found, Newest)
        assert found.refused == ()
        assert found.attempt >= before.attempt
        truth = state(MOE, found.attempt.step % STEPS)
        checkpoint = Checkpoint(vault, found.attempt, found.manifest, MOE)
        for tensor in model_tensors(MOE):
            box = Piece(tensor.name, 0, tensor.rows, 0, max(1, tensor.experts))
            for part, expected in zip(checkpoint.read(box), truth.read(box), strict=True):
                assert part.equal(expected)
        cut += len({name.split("/")[0] for name in vault.names()}) > len(complete(vault.names()))
    assert cut, "no kill met a save under way"
