"""worker/weights/saving.py: a disk that refuses is tried again, and said in one sentence."""

from __future__ import annotations

import os
import threading
import time

import pytest

from worker.weights import saving
from worker.weights.files import File
from worker.weights.saving import Mark, NotYet, Write

LIMIT_S = 10.0


def writes(folder, *names):
    made = [File.of(name, f"{name}.part", lambda: iter([b"x"])) for name in names]
    return [Write(folder, file) for file in made]


def until(claim):
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_all_files_are_written_in_their_order(tmp_path):
    found = saving.Saving(writes(tmp_path / "new", "a", "b"))
    until(lambda: found.is_done)
    assert found.error is None
    names = sorted((tmp_path / "new").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert [path.name for path in names] == ["a", "b"]


@pytest.mark.parametrize("remedy", ["in time", "never"])
def test_what_is_in_the_way_is_said_and_tried_again_until_cancelled(tmp_path, monkeypatch, remedy):
    monkeypatch.setattr(saving, "FIRST_PAUSE_S", 0.01)
    (tmp_path / "out").touch()
    found = saving.Saving(writes(tmp_path / "out", "a"))
    until(lambda: found.error)
    assert found.error == (
        f"file exists: {str(tmp_path / 'out' / 'a')!r}; "
        "the weights are kept in memory, and the rank tries again"
    )
    assert not found.is_done
    if remedy == "in time":
        (tmp_path / "out").unlink()
        until(lambda: found.is_done)
        assert found.error is None
    else:
        found.cancel()
        (tmp_path / "out").unlink()
        time.sleep(0.2)
        assert not found.is_done
        assert not (tmp_path / "out").exists()


def test_a_file_that_is_being_written_when_it_is_cancelled_does_not_come(tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def slow():
        yield b"a"
        if slow.waits:
            begun.set()
            go_on.wait(LIMIT_S)

    slow.waits = False
    file = File.of("a", "a.part", slow)
    slow.waits = True
    found = saving.Saving([Write(tmp_path, file)])
    assert begun.wait(LIMIT_S)
    found.cancel()
    go_on.set()
    until(lambda: not any(tmp_path.iterdir()))
    assert not found.is_done


class Waiting:
    """A step that waits for another rank."""

    def __init__(self, path):
        self.path, self.looks, self.came = path, 0, threading.Event()

    def run(self, go_on):
        self.looks += 1
        if not self.came.is_set():
            raise NotYet


def test_waiting_for_another_rank_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "LOOK_AGAIN_S", 0.001)
    step = Waiting(tmp_path)
    found = saving.Saving([step, Mark(tmp_path / "end")])
    until(lambda: step.looks > 3)
    assert found.error is None
    assert not found.is_done
    step.came.set()
    until(lambda: found.is_done)
    assert (tmp_path / "end").read_bytes() == b""


def test_pauses_grow_and_end_within_ten_seconds_of_the_remedy():
    assert saving.FIRST_PAUSE_S <= 0.5
    assert saving.LONGEST_PAUSE_S <= 5.0


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may become another user")
def test_a_folder_of_somebody_else_is_tried_until_it_is_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "FIRST_PAUSE_S", 0.01)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        found = saving.Saving(writes(tmp_path, "a"))
        until(lambda: found.error)
        assert found.error.startswith("permission denied: ")
    finally:
        os.seteuid(0)
    until(lambda: found.is_done)
    assert (tmp_path / "a").exists()


def test_once_it_is_cancelled_nothing_is_done_and_what_is_left_can_begin_anew(tmp_path):
    entered, ended = threading.Event(), []

    class Slow:
        path = tmp_path

        def run(self, go_on):
            entered.set()
            while go_on() and not ended:
                time.sleep(0.001)
            time.sleep(0.05)  # a disk that is slow to answer
            ended.append(True)

    found = saving.Saving([Slow(), *writes(tmp_path, "a")])
    assert entered.wait(LIMIT_S)
    found.cancel()
    assert ended == [True]
    assert not (tmp_path / "a").exists()
    rest = found.again()
    until(lambda: rest.is_done)
    assert (tmp_path / "a").exists()
