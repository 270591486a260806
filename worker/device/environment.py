"""Environment of a process that will use a device; it is set before torch is imported.

It imports nothing heavy, so that the command of an agent can read it first.
Source: torch's ProcessGroupNCCL and nccl2 for the names of the watchdogs; NVIDIA Resiliency
Extension's guide, which switches the same ones off; CUDA's documentation of lazy loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

DeviceKind = Literal["cpu", "cuda"]
VISIBLE = "CUDA_VISIBLE_DEVICES"
_CPU = {"DS_ACCELERATOR": "cpu"}
_CUDA = {
    "DS_ACCELERATOR": "cuda",
    # Without it a look for GPUs would initialise CUDA in the fork server, and poison every fork.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # A broken world is ended by its own rank; no watchdog of torch is to kill the process.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": "120",  # seconds to connect, of the older class
    "NCCL_RUNTIME_CONNECT": "0",  # connect while the old plan trains, not at the first operation
    # Kernels of two communicators start on all GPUs in the order in which the host issues them.
    "NCCL_LAUNCH_ORDER_IMPLICIT": "1",
    # Loading a kernel while another one waits for a peer may wait for that one.
    "CUDA_MODULE_LOADING": "EAGER",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # else products differ from run to run
}


def environment_of(kind: DeviceKind) -> dict[str, str]:
    """Variables for a device of that kind."""
    return dict(_CPU if kind == "cpu" else _CUDA)


def visible(slot: int, environment: Mapping[str, str]) -> str:
    """The GPU of a slot, as CUDA names it: the slot-th of those that the pod may see."""
    named = environment.get(VISIBLE, "")
    found = [one.strip() for one in named.split(",") if one.strip()]
    return found[slot] if slot < len(found) else str(slot)
