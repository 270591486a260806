"""worker/agent/measuring/row_queue.py: a disk that refuses costs no later row."""

from __future__ import annotations

import threading
import time

from worker.agent.measuring.row_queue import RowQueue

PATIENCE_S = 30.0


class Disk:
    """A writer that refuses while it is full, and holds rows up until it is let go."""

    def __init__(self):
        self.rows, self.is_full, self.tries = [], False, 0
        self.goes_on = threading.Event()
        self.goes_on.set()

    def open(self):
        return self

    def add(self, row):
        assert self.goes_on.wait(PATIENCE_S)
        self.tries += 1
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.rows.append(row["step"])

    def close(self):
        """Nothing is left."""


def until(claim):
    deadline_s = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_after_a_refusal_all_rows_are_written_once_and_in_order(caplog):
    disk = Disk()
    rows = RowQueue("lines", disk.open, first_pause_s=0.001)
    rows.add({"step": 0})
    until(lambda: disk.rows == [0])
    disk.is_full = True
    for step in range(1, 4):
        rows.add({"step": step})
    until(lambda: disk.tries >= 4)
    disk.is_full = False
    until(lambda: disk.rows == [0, 1, 2, 3])
    rows.close(PATIENCE_S)
    assert caplog.text.count("cannot be written") == 1
    assert caplog.text.count("are written again") == 1
    assert "were not written" not in caplog.text


def test_rows_that_wait_are_bounded_and_those_dropped_are_counted(caplog):
    disk = Disk()
    disk.goes_on.clear()
    rows = RowQueue("lines", disk.open, most=10)
    for step in range(1000):
        rows.add({"step": step})
    assert rows._rows.qsize() == 10
    disk.goes_on.set()
    rows.close(PATIENCE_S)
    assert len(disk.rows) in (10, 11)  # one may be in the thread's hand
    assert f"{1000 - len(disk.rows)} of 1000 lines were not written" in caplog.text


def test_a_disk_that_refuses_does_not_hold_up_the_end(caplog):
    disk = Disk()
    disk.is_full = True
    rows = RowQueue("lines", disk.open, first_pause_s=3600.0)
    rows.add({"step": 0})
    until(lambda: disk.tries)
    rows.close(PATIENCE_S)
    assert not rows._thread.is_alive()
    assert "1 of 1 lines were not written" in caplog.text
