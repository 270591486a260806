"""Read a whole checkpoint and find the first object that is not as it was saved.

Invariant: a chunk of a block is in memory at a time, however large the block is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from planner.errors import HeddleError
from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, model_tensors
from planner.plans.state_rule import PARTS, element_bytes
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.boxes import numel, untiled
from worker.checkpoint.manifest import Manifest, SavedBox, running_digest
from worker.checkpoint.save import header_of
from worker.checkpoint.saved_objects import damaged, read_saved
from worker.checkpoint.vaults.vault import Vault, VaultFailed

CHUNK_BYTES = 8 * 2**20
LENGTH_BYTES = 8  # at the head of a safetensors file


class Checked(NamedTuple):
    """Content of a checkpoint that is whole.

    Attributes:
        files: read.
        blocks: whose digests are right.
        num_bytes: of them.
    """

    files: int
    blocks: int
    num_bytes: int


class Contents:
    """The files of a checkpoint with a manifest that fits its model.

    Attributes:
        model: whose state it is.
        tensors: {name: tensor} of the model.
        files: {file: its boxes, in the order of their bytes}.

    Args:
        vault: that holds it.
        attempt: its name.
        manifest: of it.

    Raises:
        Damaged: the boxes do not tile the model, or do not fill their files.
    """

    def __init__(self, vault: Vault, attempt: Attempt, manifest: Manifest) -> None:
        self._vault, self._attempt, self._files = vault, attempt, manifest.files
        try:
            self.model = ModelShape.from_json(manifest.shape)
        except HeddleError as error:
            raise damaged(attempt.manifest, f"has no model: {error}") from None
        self.tensors: Mapping[str, Tensor] = {t.name: t for t in model_tensors(self.model)}
        fault = _untiled(self.model, manifest) or _misfit(self.tensors, manifest)
        if fault is not None:
            raise damaged(attempt.manifest, fault)
        files: dict[str, list[SavedBox]] = defaultdict(list)
        for saved in sorted(manifest.boxes, key=lambda one: one.start):
            files[saved.file].append(saved)
        self.files: Mapping[str, Sequence[SavedBox]] = {
            file: files[file] for file in manifest.files
        }
        for file, size in manifest.files.items():
            ends = [saved.start + saved.num_bytes for saved in files[file]]
            starts = [saved.start for saved in files[file]]
            if "/" in file or [*starts[1:], size] != ends:
                raise damaged(attempt.manifest, f"has boxes that do not fill {file}")

    def header(self, file: str) -> bytes:
        """The header of a file.

        Raises:
            Damaged: it does not describe the boxes of the manifest.
            VaultFailed: the store fails.
        """
        boxes = self.files[file]
        found = self.read(file, 0, boxes[0].start)
        expected = header_of(self.tensors, tuple(dict.fromkeys(saved.box for saved in boxes)))
        try:
            is_right = _holds(_parsed(found), _parsed(expected))
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            is_right = False
        if not is_right:
            raise damaged(self._attempt.name(file), "has another header than its boxes have")
        return found

    def block(self, saved: SavedBox) -> Iterator[bytes]:
        """The bytes of a box, chunk by chunk; an error at the end takes all of them back.

        Raises:
            Damaged: their digest is another one.
            VaultFailed: the store fails.
        """
        digest = running_digest()
        end = saved.start + saved.num_bytes
        for start in range(saved.start, end, CHUNK_BYTES):
            chunk = self.read(saved.file, start, min(start + CHUNK_BYTES, end))
            digest.update(chunk)
            yield chunk
        if digest.hexdigest() != saved.digest:
            raise damaged(
                self._attempt.name(saved.file),
                f"has other bytes of {saved.part} of {saved.box.tensor} than were saved",
            )

    def check_end(self, file: str) -> None:
        """Check that a file ends with its last box.

        Raises:
            Damaged: it has more bytes.
            VaultFailed: the store fails.
        """
        name, end = self._attempt.name(file), self._files[file]
        try:
            self._vault.read(name, end, end + 1)
        except VaultFailed as error:
            if error.code != "cut":
                raise
        else:
            raise damaged(name, f"has more than {end:,} bytes")

    def read(self, file: str, start: int, stop: int) -> bytes:
        """A range of a file.

        Raises:
            Damaged: the file is missing, or ends before.
            VaultFailed: the store fails.
        """
        return read_saved(self._vault, self._attempt.name(file), start, stop)


def verify(
    vault: Vault,
    attempt: Attempt,
    manifest: Manifest,
    checked: Callable[[int], None] = lambda _: None,
) -> Checked:
    """Read every header and block.

    Args:
        vault: that holds the checkpoint.
        attempt: its name.
        manifest: of it.
        checked: called with the number of bytes of each chunk.

    Raises:
        Damaged: the first object that is not as it was saved.
        VaultFailed: the store fails.
    """
    contents = Contents(vault, attempt, manifest)
    num_bytes = 0
    for file, boxes in contents.files.items():
        contents.header(file)
        for saved in boxes:
            for chunk in contents.block(saved):
                checked(len(chunk))
            num_bytes += saved.num_bytes
        contents.check_end(file)
    return Checked(len(manifest.files), len(manifest.boxes), num_bytes)


def _untiled(model: ModelShape, manifest: Manifest) -> str | None:
    for part in PARTS:
        lacking = untiled(model, (saved.box for saved in manifest.boxes if saved.part == part))
        if lacking is not None:
            return f"does not cover {part} of {lacking} once"
    return None


def _misfit(tensors: Mapping[str, Tensor], manifest: Manifest) -> str | None:
    for saved in manifest.boxes:
        if saved.part not in PARTS:
            return f"has the unknown part {saved.part!r}"
        elements = numel(tensors[saved.box.tensor], saved.box)
        if saved.num_bytes != element_bytes((saved.part,)) * elements:
            return f"has another number of bytes for {saved.part} of {saved.box.tensor}"
    return None


def _parsed(header: bytes) -> dict[str, Any]:
    """The content of a header, and the place of its first number."""
    length = int.from_bytes(header[:LENGTH_BYTES], "little")
    found: dict[str, Any] = json.loads(header[LENGTH_BYTES:])
    return {**found, "": length}


def _holds(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether all that is expected is there; a later version may say more."""
    about, wanted = (header["__metadata__"] for header in (found, expected))
    tensors = {key: value for key, value in expected.items() if key != "__metadata__"}
    return all(found.get(key) == value for key, value in tensors.items()) and all(
        about.get(key) == value for key, value in wanted.items()
    )
