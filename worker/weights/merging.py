"""Merges the parts of all ranks into one folder that `transformers` loads, then removes them.

A rank leaves a mark beside its part once it has read the part back and touches nothing any more, so
parts are never taken away from under somebody.  The mark's name has the part's digest: one of an
earlier job in the same folder says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from worker.errors import InvalidWeights
from worker.weights.final_weights import INDEX
from worker.weights.hugging_face.config import config_of
from worker.weights.hugging_face.writing import Wanted, folder_files, write_folder
from worker.weights.parts import WeightParts
from worker.weights.saving import NotYet

PARTS = "parts"  # folder of the parts within that of the final weights


def mark_of(name: str, sha256: str) -> str:
    """The mark of a part that is whole."""
    return f"{name}.{sha256[:16]}.whole"


@dataclass(slots=True)
class Merge:
    """The step of the rank that merges; what it has done once stays done when it is tried again.

    Attributes:
        path: the folder of the final weights; the parts are in `PARTS` within.
    """

    path: Path
    _is_verified: bool = False
    _written: set[str] = field(default_factory=set)

    def run(self, go_on: Callable[[], bool]) -> None:
        """See `worker.weights.saving.Step`."""
        parts = WeightParts(self.path / PARTS)
        if not are_whole(parts):
            raise NotYet
        if not self._is_verified:
            parts.verify(go_on)
            self._is_verified = go_on()
        write_folder(self.path, folder_files(wanted_of(parts), parts), self._written, go_on)
        if go_on():
            remove(parts)


def wanted_of(parts: WeightParts) -> Wanted:
    """The promised folder of a job: weights in fp32, with the tokenizer of the model's folder."""
    config = config_of(parts.model) if parts.config is None else parts.config
    return Wanted(parts.model, config, parts.origin)


def marks_of(parts: WeightParts) -> tuple[str, ...]:
    """Of all parts."""
    return tuple(mark_of(name, parts.digest(name)) for name in parts.names)


def are_whole(parts: WeightParts) -> bool:
    """Whether every rank has marked its part."""
    return all((parts.folder / mark).exists() for mark in marks_of(parts))


def remove(parts: WeightParts) -> None:
    """Remove the parts and their folder, if nothing else is in it; the index goes first."""
    for name in (INDEX, *marks_of(parts), *parts.names):
        (parts.folder / name).unlink(missing_ok=True)
    if not any(parts.folder.iterdir()):
        parts.folder.rmdir()


def has_parts(folder: Path) -> bool:
    """Whether a job left parts in its output folder, or they were brought together there."""
    return any((found / INDEX).is_file() for found in (folder / PARTS, folder))


def parts_in(folder: Path) -> WeightParts:
    """The parts that a job left, in its output folder or brought together anywhere.

    Raises:
        InvalidWeights: there are none.
    """
    for found in (folder / PARTS, folder):
        if (found / INDEX).is_file():
            return WeightParts(found)
    if not folder.is_dir():
        raise InvalidWeights(
            f"there is no folder {folder}; give the output folder of a job",
            field="folder",
            code="Missing",
        )
    raise InvalidWeights(
        f"{folder} holds neither weights (config.json) nor parts of weights ({INDEX}); give the "
        "output folder of a job whose steps are all trained",
        field=INDEX,
        code="Missing",
    )
