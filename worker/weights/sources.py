"""Where weights are read from, box by box: nothing here ever reads a whole tensor unasked.

A box is one slice for each dimension of our tensor, counted in the whole tensor.  The files are
mapped, so that only pages that somebody asks for are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from planner.model.tensors import Tensor
from worker.errors import InvalidWeights

Box = tuple[slice, ...]
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Source(Protocol):
    """Weights of a model."""

    def read(self, tensor: Tensor, box: Box) -> torch.Tensor:
        """A box of one of our tensors, in the precision of the source; it may be a view of a file.

        Padded rows of the vocabulary cannot be asked for.
        """


class OpenFiles:
    """The safetensors files of a folder, each opened when it is first asked for.

    Args:
        folder: they are in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}

    def file(self, name: str) -> Any:
        """An open file, as `safetensors.safe_open` gives it.

        Raises:
            InvalidWeights: it is missing or damaged.
        """
        if name not in self._files:
            path = self._folder / name
            try:
                self._files[name] = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise InvalidWeights(
                    f"weights file {path} cannot be read: {error}; copy it again",
                    field=name,
                    code="Unreadable",
                ) from None
        return self._files[name]

    def part(self, name: str, tensor: str, box: Box) -> torch.Tensor:
        """A box of a tensor of a file; a view of it."""
        found: torch.Tensor = self.file(name).get_slice(tensor)[box]
        return found


def whole(shape: Sequence[int]) -> Box:
    """The box that is all of a tensor."""
    return tuple(slice(0, size) for size in shape)


def narrowed(box: Box, dim: int, start: int, stop: int) -> Box:
    """The same box with other limits along one dimension."""
    return (*box[:dim], slice(start, stop), *box[dim + 1 :])
