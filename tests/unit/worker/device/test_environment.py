"""worker/device/environment.py: what a process is told of its device before it imports torch."""

from __future__ import annotations

import subprocess
import sys

from migration.transport import FORM_S
from worker.device.environment import environment_of, visible


def test_a_rank_sees_the_gpu_of_its_slot_by_the_name_that_the_pod_has_for_it():
    assert visible(2, {}) == "2"
    assert visible(1, {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b"}) == "GPU-b"
    assert visible(3, {"CUDA_VISIBLE_DEVICES": "GPU-a"}) == "3"  # the agent has refused it before


def test_deepspeed_is_told_the_device_and_no_watchdog_ends_the_process():
    assert environment_of("cpu") == {"DS_ACCELERATOR": "cpu"}
    cuda = environment_of("cuda")
    assert cuda["DS_ACCELERATOR"] == "cuda"
    assert cuda["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    assert cuda.pop("TORCH_NCCL_NONBLOCKING_TIMEOUT") == f"{FORM_S:.0f}"
    assert {value for name, value in cuda.items() if name.startswith("TORCH_NCCL")} == {"0"}


def test_the_agent_learns_of_gpus_without_torch():
    code = "import sys, worker.device.gpus; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
