"""worker/weights/one_folder.py: all ranks learn alike whether they see one folder."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.unit.worker.weights.together import Ranks
from worker.weights import one_folder


def seen(folders, writes=None):
    """What each rank answers."""
    ranks = Ranks(len(folders))

    def ask(rank):
        return one_folder.all_see(folders[rank], rank, writes is None or writes[rank], ranks)

    with ThreadPoolExecutor(len(folders)) as pool:
        return list(pool.map(ask, range(len(folders))))


@pytest.fixture
def machines(monkeypatch):
    """No folder is known by its identity, as on several machines."""
    monkeypatch.setattr(one_folder, "BOOT_ID", one_folder.BOOT_ID / "none")


def test_one_folder_of_one_machine_is_seen_by_all(tmp_path):
    assert seen([tmp_path / "new"] * 3) == [True] * 3


def test_one_folder_of_several_machines_is_seen_by_all_and_left_as_it_was(tmp_path, machines):
    assert seen([tmp_path / "new"] * 3) == [True] * 3
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("several", [False, True])
def test_folders_of_their_own_are_told_apart(tmp_path, several, request):
    if several:
        request.getfixturevalue("machines")
    folders = [tmp_path / "a", tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    assert seen(folders) == [False] * 3
    assert seen(folders, writes=[True, True, False]) == [True] * 3, (
        "who writes nothing is not asked"
    )
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may become another user")
@pytest.mark.parametrize("several", [False, True])
def test_a_folder_that_takes_no_file_now_is_one_if_the_machine_is(tmp_path, several, request):
    if several:
        request.getfixturevalue("machines")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        assert seen([tmp_path] * 2) == [not several] * 2
    finally:
        os.seteuid(0)
