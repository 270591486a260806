"""Load a checkpoint: the newest that is whole, and any box of it under any plan.

Invariant: no number is given out whose block has another digest than the manifest says.
Source: design of checkpoints ("A load is a start").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import torch

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, model_tensors
from planner.plans.pieces import Piece
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.boxes import overlap
from worker.checkpoint.looking import examined
from worker.checkpoint.manifest import InvalidManifest, Manifest, SavedBox, digest_of
from worker.checkpoint.save import PARTS
from worker.checkpoint.vault import Vault
from worker.engine.seam import Parts
from worker.state.held_state import view
from worker.state.shards import box_shape


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
    for one in examined(vault, refuse):
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
        self._boxes: dict[tuple[str, str], list[SavedBox]] = defaultdict(list)
        for saved in manifest.boxes:
            self._boxes[saved.box.tensor, saved.part].append(saved)

    def read(self, box: Piece) -> Parts:
        """The parts of a box of the state, fp32 and contiguous.

        Raises:
            InvalidManifest: a block is damaged, or some row of the box is in no block.
            VaultFailed: the store fails.
        """
        tensor = self._tensors[box.tensor]
        return tuple(self._read(tensor, box, part) for part in PARTS)

    def _read(self, tensor: Tensor, box: Piece, part: str) -> torch.Tensor:
        target = torch.empty(box_shape(tensor, box))
        filled = 0
        for saved in self._boxes[box.tensor, part]:
            common = overlap(box, saved.box)
            if common is not None:
                numbers = self._block(tensor, saved)
                (source,) = view(tensor, saved.box, (numbers,), common)
                view(tensor, box, (target,), common)[0].copy_(source)
                filled += source.numel()
        if filled != target.numel():
            raise InvalidManifest(f"the checkpoint lacks rows of {box.tensor}", code="damaged")
        return target

    def _block(self, tensor: Tensor, saved: SavedBox) -> torch.Tensor:
        name = self._attempt.name(saved.file)
        content = self._vault.read(name, saved.start, saved.start + saved.num_bytes)
        self.bytes_read += len(content)
        if digest_of(content) != saved.digest:
            raise InvalidManifest(
                f"{name} has other bytes of {saved.box.tensor} than were saved", code="damaged"
            )
        numbers = torch.frombuffer(bytearray(content), dtype=torch.float32)
        return numbers.reshape(box_shape(tensor, saved.box))
