"""A device that stops to answer: what is queued on it never ends, as after a fault of a GPU."""

from __future__ import annotations

import threading
from typing import Any

from worker.errors import DeviceSilent

LOOK_S = 0.001  # between two looks at the flag, as at an event of CUDA


class SilentDevice:
    """As the device below, until `fall_silent`; then reads end at a deadline after the break."""

    def __init__(self, below: Any, break_s: float) -> None:
        self._below, self._break_s = below, break_s
        self._silent, self._never = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def fall_silent(self) -> None:
        self._silent.set()

    def host(self, tensor, broken=None):
        if not self._silent.is_set():
            return self._below.host(tensor, broken)
        while broken is None or not broken.is_set:
            self._never.wait(LOOK_S)
        self.settle()
        raise AssertionError("a silent device has settled")

    def settle(self) -> None:
        if self._silent.is_set():
            self._never.wait(self._break_s)
            raise DeviceSilent(self._break_s)
        self._below.settle()
