"""A model's tensors as Hugging Face's files hold them: names, shapes, and which of ours are inside.

Padded rows of the vocabulary are in no file: they are cut on the way out, and are zero on the way
in.  A head that shares the embedding's weight is in no file either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, model_tensors
from planner.wording import did_you_mean
from worker.errors import InvalidWeights
from worker.weights.hugging_face.families import FAMILIES, Family, Row, Stack

_FP32_BYTES = 4  # of an element


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a Hugging Face file.

    Attributes:
        name: theirs.
        ours: our tensors in it, one after the other along their rows.
        rows: of each of `ours`, without padding.
        is_transposed: see `Row`.
        expert: which of the stack `ours` it is; None: it is no expert.
        is_fp32: see `Row`.
        also: see `Row`.
        stack: see `Row`; its name is the full one.
    """

    name: str
    ours: tuple[Tensor, ...]
    rows: tuple[int, ...]
    is_transposed: bool
    expert: int | None = None
    is_fp32: bool = False
    also: str = ""
    stack: Stack | None = None

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """Of the tensor that holds all experts; only of a tensor with a `stack`."""
        assert self.stack is not None
        rows, columns = self.shape
        return (self.ours[0].experts, self.stack.parts * rows, columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """As it is in the file."""
        if self.expert is not None:
            return self.ours[0].shape[1:]
        shape = (sum(self.rows), *self.ours[0].shape[1:])
        return shape[::-1] if self.is_transposed else shape

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def num_bytes(self, element_bytes: int) -> int:
        """In a file whose elements have so many bytes."""
        return self.numel * (_FP32_BYTES if self.is_fp32 else element_bytes)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family that a config.json names.

    Raises:
        InvalidWeights: there is no table for it.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        near = did_you_mean(str(kind), FAMILIES)
        raise InvalidWeights(
            f"weights of model_type {kind!r} are not known{near}; those of "
            f"{', '.join(FAMILIES)} can be read and written",
            field="model_type",
            code="Unknown",
        )
    return FAMILIES[kind]


def stored_tensors(model: ModelShape, family: Family | None) -> tuple[StoredTensor, ...]:
    """All tensors of a model's files, in the order in which `transformers` puts them into shards.

    A model of no family keeps our names.

    Raises:
        InvalidWeights: the model has a tensor for which the family has no name.
    """
    known = {tensor.name: tensor for tensor in model_tensors(model)}
    if family is None:
        return tuple(_stored(Row(theirs=name, ours=(name,)), known) for name in known)
    found = tuple(
        _stored(row, known, expert)
        for row in _rows(model, family, known)
        for expert in (range(known[row.ours[0]].experts) if row.is_of_expert else (None,))
    )
    placed = {tensor.name for stored in found for tensor in stored.ours}
    left = [name for name in known if name not in placed]
    if left:
        raise InvalidWeights(
            f"model {model.name!r} has the tensor {left[0]!r}, for which files of "
            f"{family.architecture} have no name; give the config.json of another family",
            field=left[0],
            code="Unsupported",
        )
    return found


def _rows(model: ModelShape, family: Family, known: Mapping[str, Tensor]) -> Iterator[Row]:
    """The rows that the model has, by the full names of both sides."""
    head = f"{model.layers + 1}."

    def full(row: Row, before: str, layer: str) -> Row:
        names = (
            name.replace("embedding.", "0.").replace("head.", head) if "." in name else layer + name
            for name in row.ours
        )
        also = row.also and before + row.also
        stack = row.stack and row.stack._replace(name=before + row.stack.name)
        theirs = before + row.theirs
        return replace(row, theirs=theirs, ours=tuple(names), also=also, stack=stack)

    groups = [("", "", family.first)]
    groups += [
        (family.blocks.format(block), f"{block + 1}.", family.block)
        for block in range(model.layers)
    ]
    groups.append(("", "", family.last))
    for before, layer, rows in groups:
        for row in (full(row, before, layer) for row in rows):
            if all(name in known for name in row.ours):
                yield row


def _stored(row: Row, known: Mapping[str, Tensor], expert: int | None = None) -> StoredTensor:
    ours = tuple(known[name] for name in row.ours)
    rows: tuple[int, ...] = (1,)
    if expert is None:
        rows = tuple(tensor.shape[0] - tensor.padding for tensor in ours)
    return StoredTensor(
        name=row.theirs if expert is None else row.theirs.format(expert),
        ours=ours,
        rows=rows,
        is_transposed=row.is_transposed,
        expert=expert,
        is_fp32=row.is_fp32,
        also=row.also,
        stack=row.stack,
    )
