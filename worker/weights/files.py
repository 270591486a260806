"""Files that are whole or not there: a draft, flushed to the disk, renamed and read back."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from worker.device.device import CPU, Device
from worker.weights.folder_names import flush_names

_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
Chunks = Callable[[], Iterator[bytes | memoryview]]


@dataclass(frozen=True, slots=True)
class File:
    """A file to be written.

    Attributes:
        name: of the file in its folder.
        draft: its name until it is whole; two processes that write a file have two of them.
        chunks: gives its content anew each time; nothing is copied that is in memory already.
        size: in bytes.
        digest: SHA-256 of the content; None: whatever the chunks give while it is written.
    """

    name: str
    draft: str
    chunks: Chunks
    size: int
    digest: bytes | None = None

    @staticmethod
    def of(name: str, draft: str, chunks: Chunks) -> File:
        """Read the content once for its size and digest."""
        digest, size = hashlib.sha256(), 0
        for chunk in chunks():
            digest.update(chunk)
            size += len(chunk)
        return File(name, draft, chunks, size, digest.digest())

    def write(self, folder: Path, may_take_name: Callable[[], bool] = lambda: True) -> None:
        """Write it into a folder, over an older one of its name.

        `may_take_name` is asked all the while; once it says no, it ends, and no file is left.

        Raises:
            OSError: it was not written, or the disk gives back something else.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path, draft = folder / self.name, folder / self.draft
        written = hashlib.sha256()
        try:
            with draft.open("wb") as opened:
                for chunk in self.chunks():
                    opened.write(chunk)
                    if self.digest is None:
                        written.update(chunk)
                    if not may_take_name():
                        return
                opened.flush()
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if not may_take_name():
                return
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)  # it takes room that another file needs
        flush_names(folder)
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").digest()
        if found != (self.digest or written.digest()):
            raise OSError(errno.EIO, "the disk gives back other bytes than were written", str(path))


def safetensors_chunks(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], device: Device = CPU
) -> Iterator[bytes | memoryview]:
    """A safetensors file, tensor by tensor: the library's own writer copies all of them first.

    Source: the format's description, huggingface.co/docs/safetensors.
    """
    described = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    yield safetensors_header(described, metadata)
    for tensor in tensors.values():
        yield bytes_of(device.host(tensor))


def safetensors_header(
    tensors: Mapping[str, tuple[Sequence[int], torch.dtype]], metadata: Mapping[str, str]
) -> bytes:
    """Header of a file; tensors are {name: (shape, dtype)} in the file's order."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (shape, dtype) in tensors.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": _DTYPES[dtype],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The numbers of a host tensor, row by row; no copy if they lie so in memory."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
