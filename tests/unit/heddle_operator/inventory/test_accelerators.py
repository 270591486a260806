"""What vendors and clouds call a GPU, and what the profiles call it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heddle_operator.inventory.accelerators import canonical, gpu_type_of
from planner.cluster.gpu_types import HARDWARE

DOCUMENT = Path(__file__).parents[4] / "docs" / "gpus.md"


@pytest.mark.parametrize(
    ("product", "memory_mib", "gpu_type"),
    [
        ("NVIDIA-A100-SXM4-40GB", None, "a100-40"),
        ("NVIDIA-A100-SXM4-80GB", None, "a100-80"),
        ("NVIDIA-A100-80GB-PCIe", None, "a100-80-pcie"),
        ("nvidia-tesla-a100", None, "a100-40"),
        ("nvidia-a100-80gb", None, "a100-80"),
        ("a100", 40_960, "a100-40"),
        ("a100", 81_920, "a100-80"),
        ("NVIDIA-H100-80GB-HBM3", None, "h100"),
        ("NVIDIA-H100-PCIe", None, "h100-pcie"),
        ("nvidia-h100-80gb", None, "h100"),
        ("NVIDIA-H200", None, "h200"),
        ("nvidia-h200-141gb", None, "h200"),
        ("Tesla-T4", None, "t4"),
        ("nvidia-tesla-t4", None, "t4"),
        ("NVIDIA-L4", None, "l4"),
        ("nvidia-l4", None, "l4"),
        ("NVIDIA-A10", None, "a10"),
        ("NVIDIA-A10G", None, "a10g"),
        ("Tesla-V100-SXM2-32GB", None, "v100-32"),
        ("NVIDIA-RTX-6000-Ada-Generation", None, "rtx-6000-ada"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition", None, "rtx-pro-6000"),
        (
            "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition",
            None,
            "rtx-pro-6000-blackwell-max-q-workstation",
        ),
        ("NVIDIA-GH200-144G-HBM3e", None, "gh200-144g"),
        ("demo-fast", None, "demo-fast"),
    ],
)
def test_a_product_has_one_name(product, memory_mib, gpu_type):
    assert canonical(product, memory_mib) == gpu_type


def test_every_type_with_a_profile_is_found_by_a_label_of_the_documents():
    """By the table of docs/gpus.md, whose values are those of NVIDIA's GPU feature discovery."""
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert {canonical(product) for product, _ in rows} == {gpu_type for _, gpu_type in rows}
    assert {gpu_type for _, gpu_type in rows} == HARDWARE.keys()
    assert [row for row in rows if canonical(row[0]) != row[1]] == []


def test_a_label_of_ours_trumps_all_others():
    labels = {"nvidia.com/gpu.product": "NVIDIA-H200", "heddle.dev/gpu-type": "mine"}
    assert gpu_type_of(labels, {}) == ("mine", "", False)
    assert gpu_type_of(labels, {"heddle.dev/gpu-type": "noted"}) == ("noted", "", False)


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB-SHARED"),
        ("nvidia.com/gpu.product", "NVIDIA-A100-MIG-1g.5gb"),
        ("nvidia.com/gpu.sharing-strategy", "time-slicing"),
        ("nvidia.com/gpu.sharing-strategy", "mps"),
        ("nvidia.com/gpu.replicas", "4"),
        ("nvidia.com/gpu.slices.gi", "1"),
        ("cloud.google.com/gke-gpu-sharing-strategy", "time-sharing"),
        ("cloud.google.com/gke-gpu-partition-size", "1g.5gb"),
    ],
)
def test_parts_of_gpus_are_refused_in_one_sentence(label, value):
    """Whatever the administrator calls them: a name makes no GPU whole."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", label: value}
    found = gpu_type_of({**labels, "heddle.dev/gpu-type": "h100"}, {})
    assert (found.name, found.is_divided, f"{label}={value}" in found.problem) == ("", True, True)


def test_whole_gpus_of_a_plugin_that_could_divide_them_are_used():
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "single",
    }
    assert gpu_type_of(labels, {}) == ("h100", "", False)


def test_a_node_without_any_label_says_what_to_set():
    found = gpu_type_of({}, {})
    assert (found.name, found.is_divided) == ("", False)
    assert found.problem.split("; ")[1] == "set heddle.dev/gpu-type"
