"""Which type of GPU a node has: one name for what vendors and clouds call differently.

Invariant: a name never loses what a plan depends on (memory, form factor): `a100` alone is no type.
Source: the labels of NVIDIA's GPU feature discovery, of GKE and of other clouds; SkyPilot's
canonical names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

TYPE_KEY = "heddle.dev/gpu-type"  # label or annotation of a node; it overrides all others
_PRODUCT = "nvidia.com/gpu.product"
_LABELS = (
    _PRODUCT,
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
    "karpenter.azure.com/sku-gpu-name",
    "gpu.nvidia.com/model",
    "gpu.nvidia.com/class",
    "nebius.com/gpu-name",
    "skypilot.co/accelerator",
)
_MEMORY_LABELS = ("nvidia.com/gpu.memory", "karpenter.k8s.aws/instance-gpu-memory")  # MiB
# Parts of GPUs are no devices to plan for: their speed depends on who else runs on them.
_SLICED = re.compile(r"-SHARED$|-MIG-", re.IGNORECASE)
# Of whole GPUs these are absent, or have such a value.  `nvidia.com/mig.strategy` tells nothing: it
# is the setting of the device plugin, and stands on nodes whose GPUs are whole.
_WHOLE = {
    "nvidia.com/gpu.sharing-strategy": ("none",),
    "nvidia.com/gpu.replicas": ("0", "1"),
    "nvidia.com/gpu.slices.gi": ("0",),
    "cloud.google.com/gke-gpu-sharing-strategy": (),
    "cloud.google.com/gke-gpu-partition-size": (),
}
_WORDS = re.compile(r"[^a-z0-9]+")
_NOISE = {
    *("nvidia", "tesla", "amd", "instinct", "geforce", "generation", "server", "edition"),
    *("hbm2", "hbm2e", "hbm3", "hbm3e"),
}  # fmt: skip
# Words that name the family of a model, not the model: `RTX A6000`, `RTX PRO 6000 Blackwell`.
_FAMILY = (
    (re.compile(r"^rtx-(a\d+)$"), r"\1"),
    (re.compile(r"^(rtx-pro-\d+)-blackwell(?:-workstation)?$"), r"\1"),
)
# Models that one profile stands for: GH200's name has the memory of its CPU, not of its GPU.
_PROFILED_AS = {"gh200-480": "gh200-96", "rtx-2080-ti": "rtx-2080"}
_GB = re.compile(r"^(\d+)gb$")
# Models that were sold with more than one memory size: MiB up to which it is the smaller one.
_SIZES = {"a100": ((48_000, "40"), (96_000, "80")), "v100": ((20_000, "16"), (40_000, "32"))}
# Models with one size, whose size some names repeat.
_ONE_SIZE = {"h100": "80", "h200": "141", "b200": "180", "l40s": "48", "t4": "16", "l4": "24"}


class FoundType(NamedTuple):
    """The GPU type of a node.

    Attributes:
        name: of the type; "": it has none.
        problem: why it has none, in words.
        is_divided: it has none because its GPUs are not whole.
    """

    name: str = ""
    problem: str = ""
    is_divided: bool = False


def gpu_type_of(labels: Mapping[str, str], annotations: Mapping[str, str]) -> FoundType:
    """The GPU type of a node, or why it has none."""
    parts = [
        f"{key}={labels[key]}"
        for key, whole in _WHOLE.items()
        if labels.get(key) and labels[key] not in whole
    ]
    parts += [f"{_PRODUCT}={labels[_PRODUCT]}"] if _SLICED.search(labels.get(_PRODUCT, "")) else []
    if parts:
        problem = (
            f"shares GPUs by time or divides them ({', '.join(parts)}), and only whole GPUs are "
            "trained on; switch that off on the node, or use other nodes"
        )
        return FoundType(problem=problem, is_divided=True)
    chosen = annotations.get(TYPE_KEY) or labels.get(TYPE_KEY)
    if chosen:
        return FoundType(chosen)
    found = next((labels[key] for key in _LABELS if labels.get(key)), "")
    if not found:
        return FoundType(problem=f"has no label that tells its GPU type; set {TYPE_KEY}")
    memory = next((labels[key] for key in _MEMORY_LABELS if labels.get(key)), "")
    return FoundType(canonical(found, int(memory) if memory.isdigit() else None))


def canonical(product: str, memory_mib: int | None = None) -> str:
    """`NVIDIA-A100-SXM4-80GB`, `nvidia-a100-80gb` and `a100` with 81920 MiB are all `a100-80`."""
    words = [word for word in _WORDS.split(product.lower()) if word and word not in _NOISE]
    sizes = [match[1] for word in words if (match := _GB.match(word))]
    words = [word for word in words if not _GB.match(word) and not word.startswith("sxm")]
    if not words:
        return product.lower()
    model = words[0]
    size = sizes[0] if sizes else ""
    if model in _SIZES and not size:
        size = next(
            (name for most, name in _SIZES[model] if memory_mib is not None and memory_mib <= most),
            _SIZES[model][0][1] if product.lower().startswith("nvidia-tesla") else "",
        )
    if size == _ONE_SIZE.get(model):
        size = ""
    name = "-".join([model, *([size] if size else []), *words[1:]])
    for family, own in _FAMILY:
        name = family.sub(own, name)
    return _PROFILED_AS.get(name, name)
