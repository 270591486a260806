"""worker/error_kinds.py: which errors cost a peer, a device or the job, in one sentence each."""

from __future__ import annotations

import errno

import pytest
import torch
import torch.distributed as dist

from migration.errors import NoFreePort, TransferFailed
from worker.columns import by_column
from worker.error_kinds import SENTENCE_MOST, Trouble, describe_error, has_lost_its_state, site_of
from worker.errors import (
    DeviceSilent,
    DeviceUnusable,
    EngineFailed,
    HalfUpdated,
    InvalidDataset,
    NonFinite,
    NoPortToStore,
    RendezvousFailed,
    SetupUnusable,
)

BIND = (
    "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/socket.cc:95] rv != -1. "
    "-1 vs -1. bind: Address already in use"
)
NO_PORT_TO_STORE = "no port or file descriptor is left to reach the store at a:1: errno 99"
NO_PORT = "The client socket has failed to connect (errno: 99 - Cannot assign requested address)."
GLOO = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
    "[127.0.0.1]:41063. This could be caused by a peer that failed."
)
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)"
)


def numpys_own():
    """The error of an array that no machine can hold."""
    import numpy as np

    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 50)
    return caught.value


# What torch, cuBLAS, NCCL and NVML say after an Xid of the driver, or of a GPU that is gone.
LOST_GPUS = (
    "CUDA error: uncorrectable ECC error encountered",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "CUDA driver error: device unavailable",
    "ncclUnhandledCudaError: Call to CUDA function failed.",
    "NVML_SUCCESS == r INTERNAL ASSERT FAILED",
    "No CUDA GPUs are available",
    "Unable to determine the device handle: GPU is lost",
)


# A world breaks for the reason that a peer has: its own error.
QUOTED = (
    "rank 2 on a halted: out of memory: can't allocate memory",
    "rank 2 on a halted: the device failed: CUDA error: an illegal memory access",
    "rank 2 on a halted: no port or file descriptor is left: Address already in use",
)


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (RuntimeError(GLOO), "lost peer", "lost a peer: Connection closed by peer [127"),
        (RendezvousFailed("rank 3 did not come"), "lost peer", "lost a peer: rank 3 did not come"),
        (RendezvousFailed("rank 2 halted: out of memory: can't"), "lost peer", "lost a peer: rank"),
        (ConnectionError("the world of this epoch is gone"), "lost peer", "lost a peer: the world"),
        *((ConnectionError(text), "lost peer", f"lost a peer: {text}") for text in QUOTED),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "lost peer", "lost a peer: "),
        (dist.DistNetworkError("Failed to recv, got 0 bytes"), "lost peer", "Failed to recv"),
        (dist.DistStoreError("wait timeout after 1000ms"), "lost peer", "wait timeout"),
        (dist.DistBackendError("NCCL error: remote process exited"), "lost peer", "NCCL error"),
        (TransferFailed("rank 1 lost a peer: closed"), "lost peer", "rank 1 lost a peer: closed"),
        (NoFreePort("rank 1 has no port left"), "other", "rank 1 has no port left"),
        (NoPortToStore("a:1", "errno 99"), "other", NO_PORT_TO_STORE),
        (RuntimeError(BIND), "other", "no port or file descriptor is left: Address already"),
        (
            dist.DistNetworkError(NO_PORT),
            "other",
            "no port or file descriptor is left: Cannot",
        ),
        (OSError(errno.EMFILE, "Too many open files"), "other", "no port or file descriptor"),
        (RuntimeError(CPU), "device", "out of memory: can't allocate memory: you tried to"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to"), "device", "out of memory: CUDA"),
        (torch.AcceleratorError("CUDA error: unspecified"), "device", "the device failed: CUDA"),
        (RuntimeError("CUDA error: an illegal memory access"), "device", "the device failed: CUDA"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when"), "device", "out of memory: CUBLAS"),
        *((RuntimeError(text), "device", f"the device failed: {text}") for text in LOST_GPUS),
        (MemoryError(), "device", "out of memory: no more is to be had"),
        (numpys_own(), "device", "out of memory: Unable to allocate 8.00 PiB"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "device", "out of memory: [Errno 12]"),
        (RuntimeError("can't start new thread"), "device", "out of memory: can't start new"),
        (NonFinite(7, float("nan"), 1.0), "numeric", "step 7 has loss nan and gradient norm 1"),
        (SetupUnusable("two versions of NCCL"), "setup", "two versions of NCCL"),
        (DeviceUnusable("GPU 0 is divided"), "device", "GPU 0 is divided"),
        (InvalidDataset("sample 3 has token 999"), "other", "sample 3 has token 999"),
        (EngineFailed("no gradients are held"), "other", "no gradients are held"),
        (ZeroDivisionError("division by zero"), "other", "ZeroDivisionError: division by zero"),
        (RuntimeError("shape mismatch\nat line 3"), "other", "RuntimeError: shape mismatch"),
        (AssertionError(), "other", "AssertionError (no message)"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else type(value).__name__,
)
def test_an_error_has_a_kind_and_one_sentence(error, kind, sentence):
    found = describe_error(error)
    assert found[0] == kind
    assert found[1].startswith(sentence)
    assert "\n" not in found[1]
    assert "/gloo/" not in found[1]


def test_what_the_library_says_today_is_what_is_looked_for():
    """A real refusal of torch's allocator, which would need 4 EiB."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert describe_error(caught.value)[0] == "device"


def test_where_memory_ends_the_notes_say_what_was_planned_and_held():
    error = RuntimeError(CPU)
    error.add_note("stage 1 of 2")
    assert describe_error(error)[1].endswith("(Cannot allocate memory); stage 1 of 2")
    other = ZeroDivisionError("division by zero")
    other.add_note("stage 1 of 2")
    assert describe_error(other)[1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
        (DeviceSilent(5.0), True),
        (HalfUpdated(7, RuntimeError("no room")), True),
        *((RuntimeError(text), True) for text in LOST_GPUS),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), False),
        (EngineFailed("a peer said: CUDA error: an illegal memory access"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (ConnectionError("rank 1 is gone"), False),
        *((ConnectionError(text), False) for text in QUOTED),
        (RuntimeError(GLOO), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_an_error_of_the_device_itself_ends_the_process(error, is_lost):
    assert has_lost_its_state(error) == is_lost
    if is_lost:
        assert describe_error(error)[0] == "device"


def test_a_sentence_is_cut_and_its_kind_is_that_of_the_whole():
    error = RuntimeError("x" * 100_000 + " out of memory")
    trouble = Trouble.of(error, "epoch 2 was not reached: ")
    assert len(trouble.sentence) == SENTENCE_MOST
    assert trouble.sentence.startswith("epoch 2 was not reached: out of memory: xxx")
    assert (trouble.sentence[-3:], trouble.kind) == ("...", "device")


def test_a_site_is_the_class_and_our_innermost_function_whatever_the_sentence_says():
    sites = set()
    for key in ("b", "c"):
        with pytest.raises(ValueError, match=key) as caught:
            by_column([{"a": 1}, {key: 2}])
        sites.add(site_of(caught.value))
        assert Trouble.of(caught.value).site in sites
    (site,) = sites
    assert site == "ValueError in worker.columns.by_column"
    assert site_of(ZeroDivisionError("division by zero")) == "ZeroDivisionError"
