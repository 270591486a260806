"""Errors of a device that a rank or a pod reports."""

from __future__ import annotations

from typing import Literal

from worker.errors import WorkerError

DeviceCode = Literal[
    "no-driver", "old-driver", "too-few", "busy", "other-type", "shared", "no-precision"
]


class DeviceUnusable(WorkerError):
    """A GPU cannot be trained on as it was asked for.

    Attributes:
        code: which of the ways, for programs.
    """

    def __init__(self, sentence: str, code: DeviceCode) -> None:
        super().__init__(sentence)
        self.code = code


class DeviceSilent(WorkerError):
    """The device does not answer: its process ends, and the agent starts another one."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(
            f"the device failed: it has not answered for {waited_s:g} s after its world broke"
        )
