"""What the children of a fork server under test run; they need neither torch nor a store."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
import types
from typing import Any

from worker.errors import DeviceUnusable

_threads: list[threading.Thread] = []


def warm_up() -> None:
    """Nothing to import; what else it does, a test says: a thread, CUDA, another user."""
    if "HEDDLE_TEST_CUDA" in os.environ:
        device = types.ModuleType("worker.device.cuda")  # torch would take seconds
        device.is_initialised = lambda: True
        sys.modules[device.__name__] = device
    if "HEDDLE_TEST_USER" in os.environ:  # the kernel limits no process of root's
        os.setresuid(*3 * [int(os.environ["HEDDLE_TEST_USER"])])
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


def refuse(channel: socket.socket) -> None:
    """Raise an error that a user can cause."""
    raise DeviceUnusable("{field} asks for nccl", field="HEDDLE_WIRE", code="Missing")


def leave(channel: socket.socket, code: int) -> None:
    """Exit with a status."""
    raise SystemExit(code)


def stay(channel: socket.socket) -> None:
    """Say so, then wait until killed."""
    channel.sendall(b"here\n")
    while True:
        signal.pause()


def limit(channel: socket.socket) -> None:
    """Let the fork server's user have as many processes as each line says; -1: any number."""
    with channel.makefile("rwb", buffering=0) as lines:
        for line in lines:
            _, most = resource.prlimit(os.getppid(), resource.RLIMIT_NPROC)
            count = most if int(line) < 0 else int(line)
            resource.prlimit(os.getppid(), resource.RLIMIT_NPROC, (count, most))
            lines.write(line)


def live(channel: socket.socket, pod: str, slot: int, **_: Any) -> None:
    """A rank that trains and beats ten times a second, each slot with a fate of its own.

    0 makes progress once a second, 1 stops as a frozen machine does, 2 runs in a circle, 3 waits
    for its peers.  What it hears of a halt it says as its error.
    """
    about = {"slot": slot, "pid": os.getpid(), "started_s": time.monotonic(), "rank": slot}
    channel.sendall(_beat_of(0, slot))  # who has never sent one is not judged
    threading.Thread(target=_beat, args=(channel, slot), daemon=True).start()
    with channel.makefile("rb") as lines:
        for line in lines:
            heard = json.loads(line)
            epoch = heard.get("epoch") or heard["directive"]["epoch"]
            said = {**about, "phase": "training", "epoch": epoch, "error": heard.get("sentence")}
            channel.sendall(json.dumps({"type": "report", "rank": said}).encode() + b"\n")
            record = {"epoch": epoch, "step": 0, "loss": 1.0, "gradient_norm": 1.0}
            step = {"type": "step", "record": {**record, "start_s": 0.0, "end_s": 0.1}}
            channel.sendall(json.dumps(step).encode() + b"\n")
            if slot == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            if slot == 2:
                _run_in_a_circle()


def _beat(channel: socket.socket, slot: int) -> None:
    for tenth in itertools.count():
        progress = tenth // 10 if slot == 0 else 7
        channel.sendall(_beat_of(progress, slot))
        time.sleep(0.1)


def _beat_of(progress: int, slot: int) -> bytes:
    beat = {"type": "beat", "progress": progress, "part": "forward", "waiting": slot == 3}
    return json.dumps(beat).encode() + b"\n"


def _run_in_a_circle() -> None:
    while True:
        time.sleep(0.01)
