"""checkpoint/vaults/folder_vault.py: errors of a disk have codes, and no draft stays."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.drafts import age, left_by_a_killed_writer
from worker.checkpoint.vaults import folder_vault
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.checkpoint.vaults.vault import VaultFailed


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "full"),
        (errno.EDQUOT, "full"),
        (errno.EROFS, "refused"),
        (errno.EACCES, "refused"),
        (errno.EIO, "other"),
    ],
)
def test_an_error_of_the_disk_has_a_code_and_leaves_nothing(tmp_path, monkeypatch, number, code):
    vault = FolderVault(tmp_path)

    def fail(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    for call in (lambda: vault.put("a/b", [b"x"], 1), lambda: vault.commit("a/b", b"x")):
        with pytest.raises(VaultFailed) as refusal:
            call()
        assert refusal.value.code == code
        assert str(tmp_path / "a/b") in str(refusal.value)
    assert files(tmp_path) == []


def test_content_is_on_disk_before_its_name(tmp_path, monkeypatch):
    vault, seen = FolderVault(tmp_path), []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append("sync"), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append("name"), replace(a, b)))
    vault.put("a", [b"x"], 1)
    assert seen == ["sync", "name", "sync"]


def test_a_large_file_comes_to_the_disk_while_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_vault, "SYNC_BYTES", 4)
    seen, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (seen.append(os.fstat(file).st_size), sync(file)))
    FolderVault(tmp_path).put("a", [b"abc"] * 5, 15)
    assert seen[:3] == [6, 12, 15]


@pytest.mark.parametrize("call", ["put", "commit"])
def test_a_new_folder_is_on_disk_in_the_one_above_it(tmp_path, monkeypatch, call):
    vault, synced, sync = FolderVault(tmp_path / "vault"), [], os.fsync

    def noted(descriptor):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    vault.put("step-1.e1/a", [b"x"], 1) if call == "put" else vault.commit("step-1.e1/a", b"x")
    above = [str(tmp_path), str(tmp_path / "vault")]
    assert [path for path in synced if path in above] == above
    assert synced[-1] == str(tmp_path / "vault" / "step-1.e1")


def test_drafts_are_no_objects(tmp_path):
    (tmp_path / ".a.host.1.0").write_bytes(b"half")
    assert FolderVault(tmp_path).names() == ()


def test_drafts_that_were_last_written_long_ago_go_and_nothing_else(tmp_path):
    vault = FolderVault(tmp_path)
    vault.put("a/b", [b"x"], 1)
    for name in (".old.host.1.0", ".new.host.1.0", ".other", ".nfs0001"):
        (tmp_path / "a" / name).write_bytes(b"half")
        if name != ".new.host.1.0":
            os.utime(tmp_path / "a" / name, (0, 0))
    os.utime(tmp_path / "a" / "b", (0, 0))
    vault.tidy(86_400.0)
    assert files(tmp_path) == [".new.host.1.0", ".nfs0001", ".other", "b"]


def test_the_draft_of_a_killed_process_is_one_that_goes(tmp_path, monkeypatch):
    vault = FolderVault(tmp_path)
    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(VaultFailed):
            vault.put("a.json", [b"x"], 2)
    assert len(files(tmp_path)) == 1
    vault.tidy(-60.0)
    assert files(tmp_path) == []


def test_what_a_dead_writer_left_goes_at_once_with_its_folder(tmp_path):
    draft = left_by_a_killed_writer(tmp_path)
    other = draft.with_name(".a.other-host.1.0")
    other.write_bytes(b"half")
    age(draft)
    age(other)
    vault = FolderVault(tmp_path)
    vault.tidy(86_400.0)
    assert files(tmp_path) == [other.name]  # nobody here knows its writer
    other.rename(draft)
    age(draft)
    vault.tidy(86_400.0)
    assert list(tmp_path.iterdir()) == []


def test_what_a_living_writer_writes_stays_however_long_it_takes(tmp_path):
    vault = FolderVault(tmp_path)

    def slow():
        yield b"ab"
        (draft,) = (tmp_path / "step-8.e1").iterdir()
        age(draft)
        FolderVault(tmp_path).tidy(86_400.0)
        yield b"c"

    vault.put("step-8.e1/a", slow(), 3)
    assert vault.read("step-8.e1/a") == b"abc"


def test_a_draft_that_begins_is_not_locked_yet_and_stays(tmp_path):
    draft = left_by_a_killed_writer(tmp_path)
    FolderVault(tmp_path).tidy(86_400.0)
    assert draft.exists()


def test_a_folder_that_is_not_there_holds_nothing(tmp_path):
    assert FolderVault(tmp_path / "none").names() == ()
    FolderVault(tmp_path / "none").tidy(0.0)
