"""A driver of NVIDIA's that says what a test wants; see `worker.device.gpus.Driver`."""

from __future__ import annotations

from worker.device.gpus import Gpu

H100 = Gpu("NVIDIA H100 80GB HBM3", 85 << 30, 1 << 29)


class FakeDriver:
    """One machine's driver; without a version there is none."""

    def __init__(self, version="580.65.06", gpus=(H100,)):
        self._version, self._gpus = version, gpus

    def version(self):
        return self._version

    def gpus(self):
        return tuple(self._gpus)
