"""control/host_memory.py: what is free is the machine's, or the container's if that is less."""

from __future__ import annotations

import pytest

from worker.control.host_memory import free_bytes

KIB, MIB = 1 << 10, 1 << 20


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


def test_this_machine_has_some():
    assert free_bytes() > MIB
