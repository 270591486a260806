"""How a model's tensors are spread over files, and the index that says so.

Source: `split_torch_state_dict_into_shards` of huggingface_hub, by which `save_pretrained` does it.
It takes the experts of a mixture in another order than this, and reads any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from worker.weights.hugging_face.reading import SINGLE
from worker.weights.hugging_face.tensors import StoredTensor

MAX_SHARD_BYTES = 50 * 10**9  # what `save_pretrained` takes unless told otherwise


class Shard(NamedTuple):
    """One file of weights and the tensors in it."""

    name: str
    tensors: tuple[StoredTensor, ...]


def shards(
    tensors: Sequence[StoredTensor], element_bytes: int, max_bytes: int
) -> tuple[Shard, ...]:
    """The files of a model: as many tensors in each, in their order, as fit in.

    A tensor that does not fit alone has a file of its own.
    """
    groups: list[list[StoredTensor]] = []
    current: list[StoredTensor] = []
    held = 0
    for tensor in tensors:
        size = tensor.num_bytes(element_bytes)
        if size > max_bytes:
            groups.append([tensor])
            continue
        if held + size > max_bytes:
            groups.append(current)
            current, held = [], 0
        current.append(tensor)
        held += size
    if current:
        groups.append(current)
    if len(groups) == 1:
        return (Shard(SINGLE, tuple(groups[0])),)
    return tuple(
        Shard(f"model-{number:05}-of-{len(groups):05}.safetensors", tuple(group))
        for number, group in enumerate(groups, 1)
    )


def index_of(found: Sequence[Shard], element_bytes: int) -> dict[str, object]:
    """The content of `model.safetensors.index.json`."""
    tensors = [tensor for shard in found for tensor in shard.tensors]
    numel = sum(tensor.numel for tensor in tensors if not tensor.ours[0].is_counted)
    size = sum(tensor.num_bytes(element_bytes) for tensor in tensors)
    files = {tensor.name: shard.name for shard in found for tensor in shard.tensors}
    return {
        "metadata": {"total_parameters": numel, "total_size": size},
        "weight_map": dict(sorted(files.items())),
    }
