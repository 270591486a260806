"""Writes a model as a folder that `transformers` loads, block by block of rows.

Invariant: no more of the model is in memory than one block of rows and what its conversion takes.
config.json comes last, so a folder that has one is whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from planner.model.config import CONFIG
from planner.model.shape import ModelShape
from worker.errors import InvalidWeights
from worker.weights.files import File, bytes_of, safetensors_header
from worker.weights.hugging_face.config import COPIED, final_config
from worker.weights.hugging_face.reading import INDEX, SINGLE
from worker.weights.hugging_face.shards import MAX_SHARD_BYTES, Shard, index_of, shards
from worker.weights.hugging_face.tensors import StoredTensor, family_of, stored_tensors
from worker.weights.sources import Source, narrowed, whole

BLOCK_BYTES = 8 * 2**20  # of a block of rows in fp32


@dataclass(frozen=True, slots=True)
class Wanted:
    """Content of the folder to write.

    Attributes:
        model: whose weights.
        config: its config.json; None: it has no family, and keeps our names.
        origin: folder whose tokenizer is copied, if any.
        dtype: of the weights in the folder.
        max_shard_bytes: of a file of weights.
    """

    model: ModelShape
    config: Mapping[str, Any] | None
    origin: Path | None
    dtype: torch.dtype = torch.float32
    max_shard_bytes: int = MAX_SHARD_BYTES


def folder_files(
    wanted: Wanted, source: Source, wrote: Callable[[int], None] = lambda _: None
) -> tuple[File, ...]:
    """The files of a folder, in the order in which they must be written.

    Args:
        wanted: what they are to be.
        source: of the numbers, which are read while a file is written.
        wrote: called with the number of elements that have been given out since.

    Raises:
        InvalidWeights: the model has no such files.
    """
    family = None if wanted.config is None else family_of(wanted.config)
    stored = stored_tensors(wanted.model, family)
    size = wanted.dtype.itemsize
    spread = shards(stored, size, wanted.max_shard_bytes)
    files = [_weights(shard, wanted.dtype, source, wrote) for shard in spread]
    if len(spread) > 1:
        files.append(_json(INDEX, index_of(spread, size)))
    files += [_copy(path) for path in copied_files(wanted.origin)]
    if wanted.config is not None:
        dtype = str(wanted.dtype).removeprefix("torch.")
        files.append(_json(CONFIG, final_config(wanted.config, dtype)))
    return tuple(files)


def numel_of(wanted: Wanted) -> int:
    """Elements that the files of a folder hold."""
    family = None if wanted.config is None else family_of(wanted.config)
    return sum(tensor.numel for tensor in stored_tensors(wanted.model, family))


def copied_files(origin: Path | None) -> tuple[Path, ...]:
    """Files copied from the model's own folder."""
    if origin is None:
        return ()
    return tuple(origin / name for name in COPIED if (origin / name).is_file())


def write_folder(
    folder: Path,
    files: Sequence[File],
    written: set[str],
    go_on: Callable[[], bool] = lambda: True,
) -> None:
    """Write files in their order; whoever tries again gives the same set of names once more.

    Weights of an earlier export, which a reader would take for these, are gone before the last file
    comes.

    Args:
        folder: they go to.
        files: of `folder_files`.
        written: names of those that are written, which are left out and added to.
        go_on: asked all the while; once it says no, it ends.

    Raises:
        OSError: see `File.write`.
    """
    for file in files:
        if file is files[-1]:
            _remove_outdated(folder, files)
        if file.name not in written and go_on():
            file.write(folder, go_on)
            if go_on():
                written.add(file.name)


def _remove_outdated(folder: Path, files: Sequence[File]) -> None:
    names = {file.name for file in files}
    found = [*folder.glob("model-*-of-*.safetensors"), folder / SINGLE, folder / INDEX]
    for path in found:
        if path.name not in names:
            path.unlink(missing_ok=True)


def _weights(
    shard: Shard, dtype: torch.dtype, source: Source, wrote: Callable[[int], None]
) -> File:
    tensors = sorted(shard.tensors, key=lambda tensor: tensor.name)  # as the library's own writer
    kinds = {tensor.name: torch.float32 if tensor.is_fp32 else dtype for tensor in tensors}
    described = {tensor.name: (tensor.shape, kinds[tensor.name]) for tensor in tensors}
    header = safetensors_header(described, {"format": "pt"})
    size = len(header) + sum(tensor.num_bytes(dtype.itemsize) for tensor in tensors)

    def chunks() -> Iterator[bytes | memoryview]:
        yield header
        for tensor in tensors:
            for block in blocks(tensor, source):
                yield bytes_of(_cast(block, kinds[tensor.name], tensor.name))
                wrote(block.numel())

    return File(shard.name, f"{shard.name}.part", chunks, size)


def _cast(block: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    """A block in the dtype of the file.

    Raises:
        InvalidWeights: a number of it is beyond that dtype.
    """
    found = block.to(dtype)
    if dtype == torch.float16 and block.isfinite().all() and not found.isfinite().all():
        raise InvalidWeights(
            f"{name} has the number {float(block.abs().max()):g}, beyond 65504, the largest of "
            "fp16; give bf16 or fp32",
            field="dtype",
            code="OutOfRange",
        )
    return found


def blocks(tensor: StoredTensor, source: Source) -> Iterator[torch.Tensor]:
    """A tensor of a file from its first row to its last, some rows at a time."""
    if tensor.expert is not None:
        (ours,), expert = tensor.ours, tensor.expert
        one = narrowed(whole(ours.shape), 0, expert, expert + 1)
        at_once = _rows_at_once(ours.shape[2:])
        for first in range(0, ours.shape[1], at_once):
            last = min(first + at_once, ours.shape[1])
            yield source.read(ours, narrowed(one, 1, first, last))[0]
        return
    if not tensor.is_transposed:
        for ours, rows in zip(tensor.ours, tensor.rows, strict=True):
            box = whole((rows, *ours.shape[1:]))
            step = _rows_at_once(ours.shape[1:])
            for start in range(0, rows, step):
                yield source.read(ours, narrowed(box, 0, start, min(start + step, rows)))
        return
    (columns,) = tensor.ours[0].shape[1:]
    step = _rows_at_once((sum(tensor.rows),))
    for start in range(0, columns, step):
        part = slice(start, min(start + step, columns))
        both = zip(tensor.ours, tensor.rows, strict=True)
        found = [source.read(ours, (slice(0, rows), part)).T for ours, rows in both]
        yield found[0] if len(found) == 1 else torch.cat(found, dim=1)


def _rows_at_once(shape: Sequence[int]) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return max(1, BLOCK_BYTES // (4 * elements))


def _json(name: str, content: Mapping[str, object]) -> File:
    text = (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    return File.of(name, f"{name}.part", lambda: iter([text]))


def _copy(path: Path) -> File:
    def chunks() -> Iterator[bytes | memoryview]:
        with path.open("rb") as opened:
            while chunk := opened.read(BLOCK_BYTES):
                yield chunk

    return File(path.name, f"{path.name}.part", chunks, path.stat().st_size)
