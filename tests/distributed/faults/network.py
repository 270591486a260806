"""A network of our own, in which a pod can be blackholed: no packet leaves or reaches it any more.

The kernel knows whose a packet is by the group of the process that made the socket, so each pod has
a group of its own (`python -m tests.distributed.faults.network agent ...` is an agent that has).
"""

from __future__ import annotations

import ctypes
import os
import runpy
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000
FIRST_GROUP, GROUPS = 50_000, 10_000


def group_of(pod: str) -> int:
    """The group of a pod's processes."""
    return FIRST_GROUP + zlib.crc32(pod.encode()) % GROUPS


def _table(pod: str) -> str:
    return f"inet blackhole_{group_of(pod)}"


@contextmanager
def own_network() -> Iterator[None]:
    """What this thread starts talks over a loopback of its own; root only."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before:
        if libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network of our own")
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            libc.setns(before.fileno(), CLONE_NEWNET)


@contextmanager
def blackholed(pod: str, pids: Iterable[int]) -> Iterator[None]:
    """No packet comes through: of the connections that the processes have, nor of new ones.

    Ports alone would not do: the kernel gives those of a process that has died to others.
    """
    table = _table(pod)
    ends = ", ".join(f"{a} . {b}" for a, b in sorted(set().union(*map(_connections, pids))))
    known = [f"tcp {a}port . tcp {b}port {{ {ends} }} drop" for a, b in ("sd", "ds") if ends]
    rules = [
        f"add table {table}",
        f"add chain {table} out {{ type filter hook output priority 0; }}",
        *(f"add rule {table} out {rule}" for rule in (f"meta skgid {group_of(pod)} drop", *known)),
    ]
    subprocess.run(["nft", "-f", "-"], input="\n".join(rules), text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", *table.split()], check=True)


def _connections(pid: int) -> set[tuple[int, int]]:
    """(its own port, the other end's) of each TCP connection of a process."""
    own = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            local, other = (int(end.rpartition(":")[2], 16) for end in fields[1:3])
            if other and f"socket:[{fields[9]}]" in own:
                found.add((local, other))
    return found


if __name__ == "__main__":
    os.setgid(group_of(sys.argv[sys.argv.index("--pod") + 1]))
    runpy.run_module("worker", run_name="__main__")
