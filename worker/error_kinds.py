"""Kind and site of the error that stopped a rank, and one sentence about it.

The operator recovers from a lost peer, leaves a device out that failed, and ends a job whose error
would come again for ever; so somebody must tell them apart.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import NamedTuple

from migration.errors import NoFreePort, TransferFailed, no_port_words
from planner.errors import HeddleError
from planner.wording import cut, first_line
from worker.contract import ErrorKind
from worker.errors import (
    CheckpointUnusable,
    DeviceSilent,
    DeviceUnusable,
    FabricHangs,
    HalfUpdated,
    NonFinite,
    NoPortToStore,
    NoRoom,
    RendezvousFailed,
    SetupUnusable,
    StoreFailed,
)

# What torch, the C++ runtime and the kernel say when memory or threads are at their end; on the CPU
# the class of torch's error is a plain RuntimeError.
_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Cannot allocate",
    "bad_alloc",
    "can't start new thread",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
# What CUDA, its libraries, NCCL and NVML say of a GPU that has failed: the errors that the driver
# logs as Xid, and a GPU that fell off the bus.  torch raises some of them as a plain RuntimeError.
_DEVICE_WORDS = (
    "CUDA error",
    "CUDA driver error",
    "CUDA unknown error",
    "CUBLAS_STATUS_",
    "CUDNN_STATUS_",
    "CUSOLVER_STATUS_",
    "ncclUnhandledCudaError",
    "unhandled cuda error",
    "NVML_SUCCESS ==",
    "No CUDA GPUs are available",
    "GPU is lost",
    "fallen off the bus",
)
# By name, for who tells errors apart need not import torch.
_DEVICE_ERRORS = ("AcceleratorError", "OutOfMemoryError")
_PEER_ERRORS = ("DistStoreError", "DistNetworkError", "DistBackendError", "DistError")
_ALLOCATOR = "DefaultCPUAllocator: "
SENTENCE_MOST = 2_000  # characters of a sentence: an error may quote a whole batch
_OURS = ("planner", "migration", "worker")  # packages whose functions a site names


class Trouble(NamedTuple):
    """What is wrong with a rank: one sentence, its kind and its site; None while nothing is."""

    sentence: str | None = None
    kind: ErrorKind | None = None
    site: str | None = None

    @staticmethod
    def of(error: BaseException, prefix: str = "") -> Trouble:
        """The trouble that an error makes."""
        kind, sentence = describe_error(error)
        return Trouble(cut(prefix + sentence, SENTENCE_MOST), kind, site_of(error))

    @staticmethod
    def of_halt(error: BaseException, told: str | None) -> Trouble:
        """That of a rank that halts.

        Args:
            error: that it met.
            told: by its agent, which knows better why a peer is lost; None: nothing.
        """
        found = Trouble.of(error)
        is_told = told is not None and found.kind == "lost peer"
        return Trouble.of(RendezvousFailed(told)) if is_told else found


def has_lost_its_state(error: BaseException) -> bool:
    """Whether this process is to end: its state is half updated, or its device is lost.

    A device is lost after any CUDA error but lack of memory.  A lost peer is no such error.
    """
    if isinstance(error, DeviceSilent | HalfUpdated) or type(error).__name__ == "AcceleratorError":
        return True
    return not isinstance(error, HeddleError | MemoryError) and _is_of_device(error)


def cause_of(error: BaseException, why_broken: str | None) -> BaseException:
    """Why a call in a world failed.

    Args:
        error: that came of the call.
        why_broken: of the world; then numbers are garbage, whatever came of them.
    """
    if why_broken is not None and describe_error(error)[0] == "other":
        return ConnectionError(why_broken)
    return error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the device or of the host did not suffice."""
    return isinstance(error, MemoryError) or _speaks_of(_NO_MEMORY, error)


def _is_of_device(error: BaseException) -> bool:
    return not is_out_of_memory(error) and _speaks_of(_DEVICE_WORDS, error)


def _speaks_of(words: Iterable[str], error: BaseException) -> bool:
    """Whether an error has any of these words; a lost connection quotes the error of a peer."""
    return not isinstance(error, ConnectionError) and any(word in str(error) for word in words)


def describe_error(error: BaseException) -> tuple[ErrorKind, str]:
    """The kind of an error, and what happened in one line, without gloo's source path."""
    text = first_line(error)
    if isinstance(error, HeddleError):
        return _our_own(error), f"lost a peer: {text}" if type(error) is RendezvousFailed else text
    if isinstance(error, ConnectionError):
        return "lost peer", f"lost a peer: {text}"
    name = type(error).__name__
    if is_out_of_memory(error):
        said = text.partition(_ALLOCATOR)[2] or text
        where = "; ".join(("", *getattr(error, "__notes__", ())))  # see `rank.memory`
        return "device", f"out of memory: {said or 'no more is to be had'}{where}"
    if name in _DEVICE_ERRORS or _is_of_device(error):
        return "device", f"the device failed: {text}"
    words = no_port_words(text)
    if words is not None:  # no fault of a peer, and this node may lack it again
        return "other", f"no port or file descriptor is left: {words}"
    if isinstance(error, RuntimeError) and "/gloo/" in text:
        return "lost peer", f"lost a peer: {text.partition('] ')[2].partition('. ')[0]}"
    if name in _PEER_ERRORS:
        return "lost peer", text
    return "other", f"{name}: {text}" if text else f"{name} (no message)"


def site_of(error: BaseException) -> str:
    """Class of an error, and the innermost function of Heddle that it came through.

    It holds no value, line or address, so the same error has the same site in every process.
    """
    names = [
        f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}"
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    ours = [name for name in names if name.partition(".")[0] in _OURS]
    return " in ".join((type(error).__name__, *ours[-1:]))


def _our_own(error: HeddleError) -> ErrorKind:
    """By the class alone: its sentence may quote another rank's error of any kind."""
    if isinstance(error, NonFinite):
        return "numeric"
    if isinstance(error, SetupUnusable):  # a DeviceUnusable, too
        return "setup"
    if isinstance(error, NoRoom | DeviceUnusable | DeviceSilent | HalfUpdated):
        return "device"
    if isinstance(error, FabricHangs):
        return "fabric"
    if isinstance(error, CheckpointUnusable):
        return "checkpoint"
    if isinstance(error, StoreFailed):
        return "store"
    if isinstance(error, NoFreePort | NoPortToStore):
        return "other"
    return "lost peer" if isinstance(error, RendezvousFailed | TransferFailed) else "other"
