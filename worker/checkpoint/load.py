"""Load a checkpoint: the newest that is whole, and any box of it under any plan.

Invariant: no number is given out whose block has another digest than the manifest says.
Source: design of checkpoints ("A load is a start").
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, model_tensors
from planner.plans.pieces import Piece
from planner.plans.state_rule import PARTS, element_bytes
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.boxes import overlap
from worker.checkpoint.looking import examined
from worker.checkpoint.manifest import InvalidManifest, Manifest, SavedBox, digest_of
from worker.checkpoint.saved_objects import damaged, read_saved
from worker.checkpoint.vaults.vault import Vault
from worker.engine.seam import Parts
from worker.model.boxes import box_shape, view, within

Numbers = npt.NDArray[np.float32]
AT_ONCE_BYTES = 32_000_000  # of one read, unless a block has more


class Refused(NamedTuple):
    """An attempt that was not taken, and why: one sentence."""

    attempt: Attempt
    sentence: str


class Newest(NamedTuple):
    """The checkpoint to go on from, and newer ones that were refused."""

    attempt: Attempt
    manifest: Manifest
    refused: tuple[Refused, ...]


def newest(
    vault: Vault, refuse: Callable[[Manifest], str | None] = lambda _: None
) -> Newest | tuple[Refused, ...]:
    """The newest checkpoint whose manifest is whole and not refused; else why each one is not.

    Args:
        vault: that holds them.
        refuse: says in a sentence why a manifest is of another job; None: it is of this one.

    Raises:
        VaultFailed: the names cannot be listed.
    """
    refused: list[Refused] = []
    for one in examined(vault, vault.names(), refuse):
        if one.manifest is not None:
            return Newest(one.attempt, one.manifest, tuple(refused))
        refused.append(Refused(one.attempt, one.sentence))
    return tuple(refused)


class Checkpoint:
    """A whole checkpoint, read box by box.

    Attributes:
        bytes_read: from the vault so far.
    """

    def __init__(
        self, vault: Vault, attempt: Attempt, manifest: Manifest, model: ModelShape
    ) -> None:
        self.bytes_read = 0
        self._vault, self._attempt = vault, attempt
        self._tensors = {tensor.name: tensor for tensor in model_tensors(model)}
        self._runs = _runs(manifest.boxes)

    def read(self, box: Piece) -> Parts:
        """The parts of a box of the state, fp32 and contiguous.

        Raises:
            InvalidManifest: a file is missing, cut or damaged, or some row of the box is in no
                block.
            VaultFailed: the store fails.
        """
        shape = box_shape(self._tensors[box.tensor], box)
        parts = tuple(torch.empty(shape) for _ in PARTS)
        self.fill(box, parts)
        return parts

    def fill(self, box: Piece, parts: Parts) -> None:
        """Write the parts of a box of the state into tensors of its shape, fp32 of the CPU.

        Raises:
            InvalidManifest: a file is missing, cut or damaged, or some row of the box is in no
                block; some numbers of other blocks are written by then.
            VaultFailed: the store fails.
        """
        tensor = self._tensors[box.tensor]
        filled = dict.fromkeys(PARTS, 0)
        for run in self._runs[box.tensor]:
            common = overlap(box, run[0].box)
            if common is None:
                continue
            into = dict(zip(PARTS, view(tensor, box, parts, common), strict=True))
            for saved, numbers in self._blocks(tensor, run):
                source = numbers[within(tensor, saved.box, common)]
                into[saved.part].detach().numpy()[...] = source
                filled[saved.part] += source.size
        if any(filled[name] != part.numel() for name, part in zip(PARTS, parts, strict=True)):
            raise InvalidManifest(f"the checkpoint lacks rows of {box.tensor}", code="damaged")

    def _blocks(
        self, tensor: Tensor, run: Sequence[SavedBox]
    ) -> Iterator[tuple[SavedBox, Numbers]]:
        """The numbers of each block of a run, for reading, once its digest is checked."""
        name, begin = self._attempt.name(run[0].file), run[0].start
        end = run[-1].start + run[-1].num_bytes
        content = memoryview(read_saved(self._vault, name, begin, end))
        self.bytes_read += len(content)
        shape = box_shape(tensor, run[0].box)
        for saved in run:
            block = content[saved.start - begin :][: saved.num_bytes]
            size = math.prod(shape) * element_bytes((saved.part,))
            if len(block) != size or digest_of(block) != saved.digest:
                raise damaged(name, f"has other bytes of {saved.box.tensor} than were saved")
            yield saved, np.frombuffer(block, np.float32).reshape(shape)


def _runs(boxes: Iterable[SavedBox]) -> dict[str, list[list[SavedBox]]]:
    """{tensor: parts of one box that lie side by side in a file, to be read at once}."""
    found: dict[str, list[list[SavedBox]]] = defaultdict(list)
    for saved in boxes:
        runs = found[saved.box.tensor]
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and (last.file, last.box, last.start + last.num_bytes)
            == (saved.file, saved.box, saved.start)
            and saved.start + saved.num_bytes - runs[-1][0].start <= AT_ONCE_BYTES
        ):
            runs[-1].append(saved)
        else:
            runs.append([saved])
    return found
