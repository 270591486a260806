"""The TCP connections of this process, and how to cut them.

A thread that waits in gloo for a silent peer waits in C++, for as long as the kernel believes in
the connection, and cannot be told to stop.  Cutting its connection from another thread ends the
wait with an error within milliseconds, as if the peer had closed it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


def connections() -> frozenset[int]:
    """The inodes of all connected TCP sockets of this process."""
    return frozenset(inode for inode, _ in _sockets())


def cut(inodes: frozenset[int] | None = None) -> int:
    """Shut some connections down, or all of them; answers how many.

    The process's channel to its agent is no TCP connection, and stays.
    """
    found = 0
    for inode, descriptor in _sockets():
        if inodes is None or inode in inodes:
            with (
                contextlib.suppress(OSError),  # closed meanwhile
                socket.socket(fileno=os.dup(descriptor)) as connection,
            ):
                connection.shutdown(socket.SHUT_RDWR)
                found += 1
    return found


def _sockets() -> Iterator[tuple[int, int]]:
    """(inode, file descriptor) of each connected TCP socket.

    A socket that listens is left out: gloo ends the process when its own one is shut down.
    """
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
            if not target.startswith("socket:["):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as found:
                is_tcp = found.family in (socket.AF_INET, socket.AF_INET6)
                listens = is_tcp and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError:  # closed meanwhile
            continue
        if is_tcp and not listens:
            yield int(target[8:-1]), int(link.name)
