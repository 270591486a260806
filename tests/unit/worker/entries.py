"""What the children of a fork server under test run; they need neither torch nor a store."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from typing import Any

_threads: list[threading.Thread] = []


def warm_up() -> None:
    """Nothing to import; with HEDDLE_TEST_THREAD set it leaves a thread behind."""
    if "HEDDLE_TEST_THREAD" in os.environ:
        _threads.append(threading.Thread(target=threading.Event().wait, daemon=True))
        _threads[0].start()


def tell(channel: socket.socket, **arguments: Any) -> None:
    """Say what this process is, and end."""
    about = {
        "arguments": arguments,
        "parent": os.getppid(),
        "pid": os.getpid(),
        "ignores": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
        "threads": os.environ["OMP_NUM_THREADS"],
    }
    channel.sendall(json.dumps(about).encode() + b"\n")


def fail(channel: socket.socket) -> None:
    """Raise."""
    raise ValueError("nothing works")


def leave(channel: socket.socket, code: int) -> None:
    """Exit with a status."""
    raise SystemExit(code)


def stay(channel: socket.socket) -> None:
    """Say so, then wait until killed."""
    channel.sendall(b"here\n")
    while True:
        signal.pause()


def train(channel: socket.socket, pod: str, slot: int, **_: Any) -> None:
    """A rank that says it trains, and does what its next directive's reason says."""
    report = {"slot": slot, "pid": os.getpid(), "started_s": time.monotonic(), "phase": "training"}
    with channel.makefile("rb") as lines:
        for line in lines:
            epoch = json.loads(line)["directive"]["epoch"]
            said = {"type": "report", "rank": {**report, "rank": slot, "epoch": epoch}}
            channel.sendall(json.dumps(said).encode() + b"\n")
