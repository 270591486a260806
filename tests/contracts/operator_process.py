"""An operator as a process of its own, for contracts at a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

COMMAND = (sys.executable, "-m", "heddle_operator")


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        found: int = listener.getsockname()[1]
        return found


@contextlib.asynccontextmanager
async def an_operator(
    kubeconfig: Path, port: int, lease: str, *options: str
) -> AsyncIterator[Process]:
    """One that serves its probes on the port and leads by a Lease of that name."""
    options = ("--port", str(port), "--lease-name", lease, "--lease-seconds", "60", *options)
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    process = await asyncio.create_subprocess_exec(*COMMAND, "run", *options, env=environment)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            process.kill()
        await process.wait()
