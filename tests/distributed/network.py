"""A network of our own, in which a pod can be blackholed: no packet leaves or reaches it any more.

The kernel knows whose a packet is by the group of the process that made the socket, so each pod has
a group of its own (`python -m tests.distributed.network agent ...` is an agent that has).
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
    """What a pod sends is dropped, and what comes to the sockets that its processes have."""
    ports = ", ".join(map(str, sorted(set().union(*map(_local_ports, pids)))))
    table = _table(pod)
    rules = (
        f"add table {table}",
        f"add chain {table} out {{ type filter hook output priority 0; }}",
        f"add chain {table} in {{ type filter hook input priority 0; }}",
        f"add rule {table} out meta skgid {group_of(pod)} drop",
        f"add rule {table} in tcp dport {{ {ports} }} drop",
    )
    subprocess.run(["nft", "-f", "-"], input="\n".join(rules), text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", *table.split()], check=True)


def _local_ports(pid: int) -> set[int]:
    """Of all TCP sockets of a process."""
    own = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if f"socket:[{fields[9]}]" in own:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


if __name__ == "__main__":
    os.setgid(group_of(sys.argv[sys.argv.index("--pod") + 1]))
    runpy.run_module("worker", run_name="__main__")
