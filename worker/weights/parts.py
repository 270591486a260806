"""The parts of a job's final weights, read as the one model that they are together.

Each rank that spoke for the model has written one file, and `weights.index.json` says where every
row is; see `worker.weights.final_weights`.  Whoever merges them has all files in one folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from planner.errors import HeddleError
from planner.model.shape import ModelShape
from planner.model.tensors import Tensor
from planner.wording import counted, reason_of
from worker.errors import InvalidWeights
from worker.weights.final_weights import INDEX
from worker.weights.sources import Box, OpenFiles, narrowed


class WeightParts:
    """The files of an index; see `Source`.

    Attributes:
        folder: they are in.
        model: that they are.
        config: its config.json; None: it came from none.
        origin: the Hugging Face folder that it came from, if any.

    Raises:
        InvalidWeights: the index cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / INDEX
        try:
            index = json.loads(path.read_text(encoding="utf-8"))
            self._tensors: Mapping[str, Any] = index["tensors"]
            self._about: Mapping[str, Any] = index["files"]
            self.model = ModelShape.from_json(index["shape"])
            self.config: dict[str, Any] | None = index["config"]
            origin = index["folder"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError, HeddleError) as error:
            raise InvalidWeights(
                f"index of weights {path} cannot be read ({reason_of(error)}); give the "
                "output folder of a job whose steps are all trained",
                field=INDEX,
                code="Unreadable",
            ) from None
        self.origin = Path(origin) if origin else None
        self._files = OpenFiles(folder)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the files."""
        return tuple(self._about)

    def digest(self, name: str) -> str:
        """SHA-256 of a file, as the index says."""
        digest: str = self._about[name]["sha256"]
        return digest

    def missing(self) -> tuple[str, ...]:
        """Files that are not there, or not as long as the index says."""
        return tuple(
            name for name, about in self._about.items() if self._size(name) != about["bytes"]
        )

    def verify(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Read every file and compare it with its digest; `go_on` is asked after each.

        Raises:
            InvalidWeights: one is missing, or differs.
        """
        missing = self.missing()
        if missing:
            raise InvalidWeights(
                f"{self.folder} lacks {counted(len(missing), 'file')} of {len(self._about)} that "
                f"{INDEX} lists, the first is {missing[0]}; bring the parts of all nodes together "
                "in one folder",
                field=missing[0],
                code="Missing",
            )
        for name, about in self._about.items():
            with (self.folder / name).open("rb") as opened:
                found = hashlib.file_digest(opened, "sha256").hexdigest()
            if found != about["sha256"]:
                raise InvalidWeights(
                    f"{self.folder / name} has SHA-256 {found[:12]}..., {INDEX} says "
                    f"{about['sha256'][:12]}...; copy it again",
                    field=name,
                    code="Damaged",
                )
            if not go_on():
                return

    def read(self, tensor: Tensor, box: Box) -> torch.Tensor:
        """See `Source`."""
        about = self._tensors[tensor.name]
        dim, parts = about["dim"], about["parts"]
        if dim is None:
            return self._files.part(parts[0]["file"], tensor.name, box)
        if tensor.experts:
            return self._experts(tensor, dim, parts, box)
        found = []
        for part in parts:
            first, last = part["rows"]
            start, stop = max(first, box[dim].start), min(last, box[dim].stop)
            if start < stop:
                inner = narrowed(box, dim, start - first, stop - first)
                found.append(self._files.part(part["file"], tensor.name, inner))
        return found[0] if len(found) == 1 else torch.cat(found, dim=dim)

    def _experts(
        self, tensor: Tensor, dim: int, parts: Sequence[Mapping[str, Any]], box: Box
    ) -> torch.Tensor:
        """A box of a stack, whose parts are boxes of experts and rows."""
        found: torch.Tensor | None = None
        for part in parts:
            inner, outer = box, box
            for of, (first, last) in ((0, part["experts"]), (dim, part["rows"])):
                start, stop = max(first, box[of].start), min(last, box[of].stop)
                inner = narrowed(inner, of, start - first, stop - first)
                outer = narrowed(outer, of, start - box[of].start, stop - box[of].start)
            if any(one.start >= one.stop for one in (outer[0], outer[dim])):
                continue
            outer = tuple(one if of in (0, dim) else slice(None) for of, one in enumerate(outer))
            numbers = self._files.part(part["file"], tensor.name, inner)
            if found is None:
                found = numbers.new_empty([one.stop - one.start for one in box])
            found[outer] = numbers
        assert found is not None  # the parts are all there
        return found

    def _size(self, name: str) -> int | None:
        try:
            return (self.folder / name).stat().st_size
        except OSError:
            return None
