"""What every `Vault` must do: one suite for S3, a folder, one without links, and the fakes."""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fakes.faulty_vault import FaultyVault
from tests.fakes.vault import MemoryVault
from tests.s3_server import S3Server, alone
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.checkpoint.vaults.vault import VaultFailed

NAME = "step-7.e2/rank-0.safetensors"


@pytest.fixture(scope="module")
def s3():
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture(params=["memory", "view of memory", "folder", "folder without links", "s3"])
def vault(request, tmp_path, monkeypatch):
    if request.param == "memory":
        return MemoryVault()
    if request.param == "view of memory":
        return FaultyVault(MemoryVault())
    if request.param == "s3":
        alone(monkeypatch)
        s3 = request.getfixturevalue("s3")
        return s3.vault(s3.bucket(), "runs/a")
    if request.param == "folder without links":

        def refuse(*_):
            raise OSError(errno.EPERM, "no links")

        monkeypatch.setattr(os, "link", refuse)
    return FolderVault(tmp_path / "vault")


def code_of(call, *arguments):
    with pytest.raises(VaultFailed) as refusal:
        call(*arguments)
    assert "\n" not in str(refusal.value)
    return refusal.value.code


def test_an_object_is_read_as_it_was_put_whole_and_by_ranges(vault):
    vault.put(NAME, [b"abc", b"", b"defgh"], 8)
    assert vault.read(NAME) == b"abcdefgh"
    assert vault.read(NAME, 2, 5) == b"cde"
    assert vault.read(NAME, 6) == b"gh"
    assert vault.read(NAME, 3, 3) == b""


def test_a_later_object_of_the_same_name_takes_its_place(vault):
    vault.put(NAME, [b"old"], 3)
    vault.put(NAME, [b"newer"], 5)
    assert vault.read(NAME) == b"newer"


def test_an_object_whose_chunks_break_off_was_never_there(vault):
    def broken():
        yield b"abc"
        raise RuntimeError("the reader ended")

    with pytest.raises(RuntimeError):
        vault.put(NAME, broken(), 6)
    assert vault.names() == ()


@pytest.mark.parametrize("announced", [2, 4])
def test_an_object_of_another_size_than_announced_is_refused(vault, announced):
    assert code_of(vault.put, NAME, [b"abc"], announced) == "cut"
    assert vault.names() == ()


def test_a_failed_put_leaves_the_older_object(vault):
    vault.put(NAME, [b"old"], 3)
    assert code_of(vault.put, NAME, [b"new"], 9) == "cut"
    assert vault.read(NAME) == b"old"


def test_what_is_committed_is_never_replaced(vault):
    assert vault.commit("manifest.json", b"first")
    assert not vault.commit("manifest.json", b"second")
    assert vault.read("manifest.json") == b"first"


def test_of_many_that_commit_at_once_one_succeeds(vault):
    contents = [f"of {number}".encode() for number in range(32)]
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda content: vault.commit("manifest.json", content), contents))
    assert sum(made) == 1
    assert vault.read("manifest.json") == contents[made.index(True)]


def test_many_put_at_once_and_none_is_mixed(vault):
    contents = [bytes([number]) * 5000 for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda content: vault.put(NAME, [content] * 4, 20_000), contents))
    assert vault.read(NAME) in {content * 4 for content in contents}


def test_names_are_listed_in_order_by_their_prefix(vault):
    for name in ("b/2", "b/10", "a/1", "ba"):
        vault.put(name, [b"x"], 1)
    assert vault.names() == ("a/1", "b/10", "b/2", "ba")
    assert vault.names("b/") == ("b/10", "b/2")
    assert vault.names("c") == ()


def test_a_removed_object_is_gone_and_may_be_removed_again(vault):
    vault.put(NAME, [b"x"], 1)
    vault.put("step-7.e2/other", [b"y"], 1)
    vault.remove(NAME)
    vault.remove(NAME)
    assert vault.names() == ("step-7.e2/other",)
    assert code_of(vault.read, NAME) == "missing"
    assert vault.commit(NAME, b"anew")


def test_a_range_beyond_the_end_is_cut_not_short(vault):
    vault.put(NAME, [b"abc"], 3)
    assert code_of(vault.read, NAME, 1, 9) == "cut"


def test_sizes_and_times_of_all_objects_are_told(vault):
    assert vault.facts() == {}
    vault.put(NAME, [b"abc"], 3)
    vault.commit("manifest.json", b"first")
    found = vault.facts()
    assert {name: about.num_bytes for name, about in found.items()} == {NAME: 3, "manifest.json": 5}
    assert abs(found[NAME].saved_at_s - time.time()) < 3600
    assert set(vault.facts("manifest")) == {"manifest.json"}


def test_tidying_touches_no_object(vault):
    vault.put(NAME, [b"abc"], 3)
    vault.commit("manifest.json", b"first")
    vault.tidy(older_than_s=0.0)
    vault.tidy(older_than_s=-1e6)
    assert vault.read(NAME) == b"abc"
    assert vault.names() == ("manifest.json", NAME)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../up", "a/../b", "a//b", ".draft", "a b"])
def test_a_name_that_leads_elsewhere_is_refused(vault, name):
    assert code_of(vault.put, name, [b"x"], 1) == "name"
    assert code_of(vault.read, name) == "name"
    assert code_of(vault.commit, name, b"x") == "name"
    assert code_of(vault.remove, name) == "name"
