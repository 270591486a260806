"""What a simulated device has seen: offences, and the reads and copies that are meant."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

PACKAGES = ("worker", "migration", "deepspeed")
SEAMS = (  # they say who called them
    "world/group.py",
    "world/world.py",
    "world/staged_wire.py",
    "world/staged_transport.py",
    "model/parallel.py",
)
# Where CUDA or NCCL raises, or stops the host although the worker means to go on.
Offence = Literal[
    "mixes devices",  # an operation on tensors of both sides
    "waits",  # a number is read past `Device.host`
    "reads a mark too early",  # nobody has waited since for the device
    "unpinned copy",  # the host waits for a copy to the device
    "host tensor on a wire",
    "another thread issues",  # NCCL wants one thread a device at a time
    "aborts one by one",  # each would wait for the kernels of the others
]
Kind = Literal["read", "copy", "DeepSpeed waits", "DeepSpeed copies"]


def place() -> str:
    """The innermost line of the packages that is running, or the autograd node of a backward."""
    import torch

    frame = sys._getframe(2)
    while frame is not None:
        name, parts = frame.f_code.co_filename, Path(frame.f_code.co_filename).parts
        for package in PACKAGES:
            if package in parts and not name.endswith(SEAMS):
                return "/".join(parts[len(parts) - 1 - parts[::-1].index(package) :]) + (
                    f":{frame.f_lineno}"
                )
        frame = frame.f_back
    node = torch._C._current_autograd_node()
    return f"backward of {node.name()}" if node is not None else "outside"


def is_deepspeed() -> bool:
    """Whether DeepSpeed's own code runs: what it does once an engine is none of ours."""
    return place().startswith("deepspeed/")


class Rules:
    """One for the process.

    Attributes:
        strict: raise at the first offence, as CUDA does.
        seen: {(kind, place, what): times}.
    """

    def __init__(self) -> None:
        self.strict = True
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self._here = threading.local()
        self._lock = threading.Lock()

    @property
    def reads(self) -> bool:
        """Whether this thread reads through `Device.host`."""
        return getattr(self._here, "reads", False)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What is inside reads as it is meant."""
        before, self._here.reads = self.reads, True
        try:
            yield
        finally:
            self._here.reads = before

    def note(self, kind: Kind | Offence, what: str) -> None:
        """Count an event at the line that runs."""
        with self._lock:
            self.seen[kind, place(), what] += 1

    def offend(self, kind: Offence, what: str) -> None:
        """CUDA or NCCL would raise here, or stop the host."""
        if self.strict:
            raise AssertionError(f"{place()} {kind}: {what}")
        self.note(kind, what)

    def count(self, kind: Kind | Offence) -> int:
        """How often something has been seen so far."""
        return sum(times for (of, *_), times in self.seen.items() if of == kind)


RULES = Rules()
