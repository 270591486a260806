"""control/host_memory.py: what is free is the machine's, or the container's if that is less."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import weakref
from pathlib import Path

import pytest

from worker.control.host_memory import drop, free_bytes

KIB, MIB = 1 << 10, 1 << 20
M_MMAP_THRESHOLD = -3  # of glibc's mallopt


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("max", 900 * KIB),  # no limit
        (f"{100 * MIB}", 900 * KIB),  # a limit above what the machine has
        (f"{70 * KIB}", 70 * KIB - 64 * KIB + 4 * KIB),  # what files keep is given back
        (f"{10 * KIB}", 0),
    ],
)
def test_free_is_the_lesser_of_machine_and_container(tmp_path, limit, expected):
    (tmp_path / "meminfo").write_text("MemTotal: 999 kB\nMemFree: 1 kB\nMemAvailable:   900 kB\n")
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(f"{64 * KIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 7\ninactive_file {4 * KIB}\nactive_file 9\n")
    assert free_bytes(tmp_path, tmp_path) == expected


def fill_and_drop(pipe):
    """Megabytes of this process before, with many tensors, and once they were dropped."""

    def resident():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MIB

    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 32 * MIB)  # as glibc comes to by itself
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    found = [resident()]
    blocks = [libc.malloc(4 * MIB) for _ in range(50)]
    for block in blocks:
        ctypes.memset(block, 1, 4 * MIB)
    keeps = libc.malloc(8 * MIB)  # behind them: the heap cannot shrink
    found.append(resident())
    for block in blocks:
        libc.free(block)
    drop([])
    found.append(resident())
    libc.free(keeps)
    pipe.send(found)


def test_memory_that_was_dropped_is_the_kernels_again():
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=fill_and_drop, args=(theirs,))
    child.start()
    assert ours.poll(60)
    before, filled, dropped = ours.recv()
    child.join()
    assert filled > before + 190
    assert dropped < before + 20


def test_what_is_dropped_is_freed():
    class Thing:
        """Can be watched."""

    content = [Thing()]
    watched = weakref.ref(content[0])
    drop(content)
    assert watched() is None


def test_this_machine_has_some():
    assert free_bytes() > MIB
