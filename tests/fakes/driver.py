"""A driver of NVIDIA's that says what a test wants; see `worker.device.gpus`."""

from __future__ import annotations

import ctypes

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


def _init(library, code):
    library.opened += not code


def _shut(library, code):
    library.opened -= 1


def _version(library, code, text, size):
    text.value = b"580.65.06"


def _count(library, code, count):
    count._obj.value = 2


def _handle(library, code, index, handle):
    handle._obj.value = index + 1


def _name(library, code, handle, name, size):
    name.value = H100.name.encode()


def _memory(library, code, handle, memory):
    memory._obj.total, memory._obj.used = H100.total_bytes, H100.used_bytes


def _mig(library, code, handle, current, pending):
    current._obj.value = 0


_CALLS = {
    "nvmlInit_v2": _init,
    "nvmlShutdown": _shut,
    "nvmlSystemGetDriverVersion": _version,
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": _handle,
    "nvmlDeviceGetName": _name,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetMigMode": _mig,
}


class FakeLibrary:
    """NVML on a machine with two GPUs; given codes are those of a call, by the GPU or None."""

    def __init__(self, **codes):
        self._codes, self.opened = codes, 0

    def __getattr__(self, call):
        def answer(*arguments):
            of_handle = bool(arguments) and isinstance(arguments[0], ctypes.c_void_p)
            gpu = arguments[0].value - 1 if of_handle else next(iter(arguments), None)
            codes = self._codes.get(call, {})
            code = codes.get(gpu if isinstance(gpu, int) else None, 0)
            _CALLS[call](self, code, *arguments)
            return code

        return answer
