"""The files of a checkpoint for other programs: a folder of `transformers`, or torch's DCP.

Invariants: a block is checked before one of its numbers is given out; no more of the model is in
memory than some rows; nothing is pickled.
Source: torch.distributed.checkpoint (`HuggingFaceStorageReader` reads safetensors by their boxes).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from planner.errors import FIELD
from planner.model.tensors import Tensor
from worker.checkpoint.boxes import offsets
from worker.checkpoint.manifest import Manifest, SavedBox
from worker.checkpoint.verify import CHUNK_BYTES, Contents
from worker.errors import InvalidWeights
from worker.model.boxes import box_shape
from worker.weights.files import File
from worker.weights.hugging_face.config import config_of
from worker.weights.hugging_face.families import FAMILIES
from worker.weights.hugging_face.writing import Wanted
from worker.weights.sources import Box

DCP_FILES = "rank-*.safetensors"  # names of a checkpoint's files


class SavedWeights:
    """The weights of a checkpoint; see `worker.weights.sources.Source`.

    Args:
        contents: of the checkpoint.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._checked: set[SavedBox] = set()
        self._weights: dict[str, list[SavedBox]] = defaultdict(list)
        for boxes in contents.files.values():
            for saved in boxes:
                if saved.part == "weight":
                    self._weights[saved.box.tensor].append(saved)

    def read(self, tensor: Tensor, box: Box) -> torch.Tensor:
        """A box of a tensor, fp32, in memory of its own.

        Raises:
            Damaged: a block of it has other bytes than were saved.
            VaultFailed: the store fails.
        """
        found = torch.empty([one.stop - one.start for one in box])
        for saved in self._weights[tensor.name]:
            held = _slices(tensor, saved)
            common = tuple(map(_overlap, held, box))
            if all(one.start < one.stop for one in common):
                self._check(saved)
                shape = box_shape(tensor, saved.box)
                for first, part in _runs(shape, tuple(map(_within, common, held))):
                    target = tuple(_moved(p, h, b) for p, h, b in zip(part, held, box, strict=True))
                    found[target] = self._numbers(saved, shape, first, part)
        return found

    def _check(self, saved: SavedBox) -> None:
        if saved not in self._checked:
            for _ in self._contents.block(saved):
                pass
            self._checked.add(saved)

    def _numbers(
        self, saved: SavedBox, shape: Sequence[int], first: int, part: Box
    ) -> torch.Tensor:
        """The numbers of a run of rows; only some columns may be wanted."""
        rows = [one.stop - one.start for one in part[: max(1, len(shape) - 1)]]
        whole = [*rows, *shape[len(rows) :]]
        start = saved.start + torch.float32.itemsize * first
        stop = start + torch.float32.itemsize * math.prod(whole)
        content = self._contents.read(saved.file, start, stop)
        numbers = torch.frombuffer(bytearray(content), dtype=torch.float32).reshape(whole)
        return numbers[..., part[-1]] if len(shape) > 1 else numbers


def hugging_face(manifest: Manifest, contents: Contents) -> Wanted:
    """The folder of `transformers` for a checkpoint, in fp32.

    Raises:
        InvalidWeights: `transformers` has no family for the model.
    """
    config = manifest.training.get("config") or config_of(contents.model)
    if config is None or config.get("model_type") not in FAMILIES:
        raise InvalidWeights(
            f"`transformers` has no family for the model {contents.model.name!r}; export it with "
            f"dcp as {FIELD}",
            field="format",
            code="Unsupported",
        )
    origin = manifest.training.get("folder")
    return Wanted(contents.model, config, Path(origin) if origin else None)


def dcp_files(
    contents: Contents, manifest: Manifest, wrote: Callable[[int], None] = lambda _: None
) -> tuple[File, ...]:
    """The files as they are, each box checked while it is written.

    Args:
        contents: of the checkpoint.
        manifest: of it.
        wrote: called with the number of bytes that have been given out since.
    """
    return tuple(
        File(name, f"{name}.part", _copied(contents, name, wrote), size)
        for name, size in manifest.files.items()
    )


def _copied(
    contents: Contents, file: str, wrote: Callable[[int], None]
) -> Callable[[], Iterator[bytes | memoryview]]:
    def chunks() -> Iterator[bytes | memoryview]:
        header = contents.header(file)
        wrote(len(header))
        yield header
        for saved in contents.files[file]:
            for chunk in contents.block(saved):
                wrote(len(chunk))
                yield chunk

    return chunks


def _slices(tensor: Tensor, saved: SavedBox) -> Box:
    """A box as one slice for each dimension of the whole tensor."""
    starts, shape = offsets(tensor, saved.box), box_shape(tensor, saved.box)
    return tuple(slice(start, start + size) for start, size in zip(starts, shape, strict=True))


def _overlap(one: slice, other: slice) -> slice:
    return slice(max(one.start, other.start), min(one.stop, other.stop))


def _within(part: slice, held: slice) -> slice:
    """A part of a dimension, counted from the beginning of what is held."""
    return slice(part.start - held.start, part.stop - held.start)


def _moved(part: slice, held: slice, box: slice) -> slice:
    """A part of what is held, counted from the beginning of a box."""
    by = held.start - box.start
    return slice(part.start + by, part.stop + by)


def _runs(shape: Sequence[int], box: Box) -> Iterator[tuple[int, Box]]:
    """(first number, its part of the box) of runs of rows that lie together in a block.

    A run has at most `CHUNK_BYTES`, or one row.
    """
    row = math.prod(shape[1:])
    if len(shape) > 2:
        for index in range(box[0].start, box[0].stop):
            for first, part in _runs(shape[1:], box[1:]):
                yield index * row + first, (slice(index, index + 1), *part)
        return
    step = max(1, CHUNK_BYTES // (torch.float32.itemsize * row))
    for start in range(box[0].start, box[0].stop, step):
        yield start * row, (slice(start, min(start + step, box[0].stop)), *box[1:])
