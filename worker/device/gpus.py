"""The GPUs that a pod sees, by the driver's own library, and whether they can be trained on.

Asking NVML initialises no CUDA, so an agent may do it before its fork server forks.
Source: NVIDIA's NVML API reference.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from planner.cluster.gpu_types import HARDWARE
from planner.wording import counted
from worker.device.environment import DeviceKind
from worker.errors import DeviceUnusable

LEAST_DRIVER = 580  # the first branch with CUDA 13, of which torch's wheels are
FREE_SHARE = 0.9  # of a GPU's memory at the start; CUDA itself takes less than a gigabyte
_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96
_NO_DRIVER, _NOT_SUPPORTED = 9, 3  # codes of NVML: the kernel has no driver; the GPU lacks this
_SIZE = re.compile(r"\d+gb")
_TWO_SIZES = ("a100", "v100")  # sold with two sizes of memory, which the driver's name states
_MODELS = {name.split("-")[0] for name in HARDWARE}
_FORMS = ("pcie", "nvl", "pro", "rtx")  # words of a type that the driver says as well


class Gpu(NamedTuple):
    """One GPU.

    Attributes:
        name: as the driver says it, such as NVIDIA H100 80GB HBM3.
        total_bytes, used_bytes: of its memory.
        is_divided: it is cut into parts (MIG).
        fault: code of NVML with which it did not answer, such as 15, GPU is lost; 0: it answers.
    """

    name: str
    total_bytes: int
    used_bytes: int
    is_divided: bool = False
    fault: int = 0


class Driver(Protocol):
    """What a pod's driver says; a fake of it tells of any machine."""

    def version(self) -> str | None:
        """Of the driver; None: there is none.

        Raises:
            DeviceUnusable: it cannot be asked.
        """

    def gpus(self) -> tuple[Gpu, ...]:
        """Those that this pod sees.

        Raises:
            DeviceUnusable: the driver cannot be asked.
        """


def device_kind(asked: str, driver: Driver, count: int) -> DeviceKind:
    """The device of a pod's ranks: `auto` takes GPUs where there is a driver with any.

    Args:
        asked: auto, cpu or cuda.
        driver: of this machine.
        count: GPUs that the pod was given.

    Raises:
        DeviceUnusable: GPUs are to be used, and cannot be.
    """
    if asked == "cpu" or (asked == "auto" and not (driver.version() and driver.gpus())):
        return "cpu"
    check_gpus(driver, count)
    return "cuda"


def check_gpus(driver: Driver, count: int) -> None:
    """Refuse GPUs that cannot be trained on, in one sentence.

    Raises:
        DeviceUnusable: see its codes.
    """
    version = driver.version()
    if version is None:
        raise DeviceUnusable(
            f"{_LIBRARY} or the kernel's driver is not there; install the NVIDIA driver, give the "
            "pod GPUs with NVIDIA_DRIVER_CAPABILITIES=compute,utility, or choose device CPU",
            code="Missing",
        )
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) < LEAST_DRIVER:
        raise DeviceUnusable(
            f"the NVIDIA driver is version {version}, this torch needs {LEAST_DRIVER} or newer; "
            "update the driver of the node",
            code="Unsupported",
        )
    gpus = driver.gpus()
    if len(gpus) < count:
        raise DeviceUnusable(
            f"this pod sees {counted(len(gpus), 'GPU')} and was given {count}; compare "
            "nvidia-smi with the pod's nvidia.com/gpu",
            code="OutOfRange",
        )
    for index, gpu in enumerate(gpus[:count]):
        if gpu.fault:
            raise DeviceUnusable(
                f"GPU {index} does not answer (NVML {gpu.fault}); look for Xid in the log of "
                "the node's kernel, and reset the GPU or leave the node out",
                code="Failed",
            )
        if gpu.is_divided:
            raise DeviceUnusable(
                f"GPU {index} ({gpu.name}) is divided by MIG, and only whole GPUs are trained on; "
                "switch MIG off or leave the node out",
                code="Unsupported",
            )
        if gpu.used_bytes > (1 - FREE_SHARE) * gpu.total_bytes:
            raise DeviceUnusable(
                f"another process holds {gpu.used_bytes / 1e9:.1f} of the "
                f"{gpu.total_bytes / 1e9:.1f} GB of GPU {index}; end it, or share no GPU by time",
                code="Taken",
            )


def check_type(name: str, gpu_type: str) -> None:
    """Refuse a GPU of another type than its node says, such as a100-80 by a label.

    A name that an administrator made up, for a profile of the cluster's own, is not checked.

    Raises:
        DeviceUnusable: the driver names another model.
    """
    model, *rest = gpu_type.lower().split("-")
    if model not in _MODELS:
        return
    words = name.lower().replace("-", " ").replace("gh200", "gh200 h100").split()
    sizes = [word for word in words if _SIZE.fullmatch(word)]
    told = {model, *(word for word in rest if word in _FORMS)}
    if model == "rtx":  # whose number is the model, as in rtx-3090
        told |= {word for word in rest if word.isdecimal()}
    elif model in _TWO_SIZES and sizes:
        told |= {f"{word}gb" for word in rest if word.isdecimal()}
    if not told <= {*words}:
        raise DeviceUnusable(
            f"the node says that its GPUs are {gpu_type}, the driver says {name}; correct the "
            "node's label",
            code="Mismatch",
        )


class Nvml:
    """The driver's own library; each question opens and closes it.

    Args:
        load: makes the library of its name.
    """

    def __init__(self, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._load = load

    def version(self) -> str | None:
        """See `Driver`."""
        with self._asked() as library:
            if library is None:
                return None
            text = ctypes.create_string_buffer(_TEXT_BYTES)
            _check(library.nvmlSystemGetDriverVersion(text, _TEXT_BYTES))
            return text.value.decode(errors="replace")

    def gpus(self) -> tuple[Gpu, ...]:
        """See `Driver`."""
        with self._asked() as library:
            if library is None:
                return ()
            count = ctypes.c_uint(0)
            _check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
            return tuple(_gpu(library, index) for index in range(count.value))

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        """The library, or None where there is no driver."""
        try:
            library = self._load(_LIBRARY)
        except OSError:
            yield None
            return
        code = library.nvmlInit_v2()
        if code == _NO_DRIVER:  # its files are there alone, as in an image with CUDA
            yield None
            return
        _check(code)
        try:
            yield library
        finally:
            library.nvmlShutdown()


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def _check(code: int) -> None:
    """Refuse a driver that cannot be asked; 18: another version of the library than of it."""
    if code:
        raise DeviceUnusable(
            f"the driver cannot be asked (NVML {code}); compare nvidia-smi on the node, and give "
            f"the pod the {_LIBRARY} of the node's driver",
            code="Unreadable",
        )


def _gpu(library: Any, index: int) -> Gpu:
    handle, memory = ctypes.c_void_p(), _Memory()
    name = ctypes.create_string_buffer(_TEXT_BYTES)
    current, pending = ctypes.c_uint(0), ctypes.c_uint(0)
    questions: tuple[Callable[[], int], ...] = (
        lambda: library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)),
        lambda: library.nvmlDeviceGetName(handle, name, _TEXT_BYTES),
        lambda: library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)),
        lambda: library.nvmlDeviceGetMigMode(handle, ctypes.byref(current), ctypes.byref(pending)),
    )
    for ask in questions:  # none after one that failed: its handle may be none
        code = ask()
        if code not in (0, _NOT_SUPPORTED):
            return Gpu("", 0, 0, fault=code)
    return Gpu(name.value.decode(errors="replace"), memory.total, memory.used, bool(current.value))
