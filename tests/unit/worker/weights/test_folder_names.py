"""worker/weights/folder_names.py: a file system that flushes no folder is no hindrance."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.checkpoint.vaults.vault import VaultFailed
from worker.weights.files import File
from worker.weights.run_record import RunRecord, claim


@pytest.fixture
def refuse(monkeypatch):
    """Let the flush of a folder end with an error."""
    flush = os.fsync

    def refuse(number):
        def fsync(descriptor):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(number, os.strerror(number))
            flush(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    return refuse


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_checkpoints_weights_and_records_are_written_without_a_flush_of_folders(
    tmp_path, refuse, number
):
    refuse(number)
    vault = FolderVault(tmp_path / "saves")
    vault.put("step-1.e1/part", [b"abc"], 3)
    assert vault.commit("step-1.e1/manifest.json", b"{}")
    assert vault.read("step-1.e1/part") == b"abc"
    File.of("model", "model.part", lambda: iter([b"abc"])).write(tmp_path / "weights")
    assert claim(tmp_path, RunRecord(run="uid", job="tiny")) is None


def test_a_disk_that_fails_is_told(tmp_path, refuse):
    refuse(errno.EIO)
    with pytest.raises(VaultFailed):
        FolderVault(tmp_path / "saves").put("step-1.e1/part", [b"abc"], 3)
    with pytest.raises(OSError, match="Input/output error"):
        File.of("model", "model.part", lambda: iter([b"abc"])).write(tmp_path)
