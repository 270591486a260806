"""A model of the user's own: its tensors, how each is cut, and where its code is.

Invariant: all blocks are alike, so that one stands for all in prices and memory.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.errors import InvalidWorkload


@dataclass(frozen=True, slots=True)
class OwnTensor:
    """One parameter of a layer.

    Attributes:
        name: within its layer, a Python name.
        shape: of the whole tensor.
        dim: the dimension that TP cuts; None if every rank of a TP group holds the whole.
    """

    name: str
    shape: tuple[int, ...]
    dim: int | None = None

    def __post_init__(self) -> None:
        is_shape = bool(self.shape) and all(
            type(size) is int and 0 < size < 2**31 for size in self.shape
        )
        is_dim = self.dim is None or (type(self.dim) is int and 0 <= self.dim < len(self.shape))
        if not (isinstance(self.name, str) and self.name.isidentifier() and is_shape and is_dim):
            raise InvalidWorkload(
                f"a tensor of the model is {reprlib.repr((self.name, self.shape, self.dim))}; it "
                "must be a Python name, a shape of positive sizes, and the dimension that TP cuts "
                "or None",
                code="Malformed",
            )


@dataclass(frozen=True, slots=True)
class OwnTensors:
    """The tensors of a model whose layers come from an entry point.

    Attributes:
        entry_point: `module:function` that gives layers and loss.
        embedding: tensors of the first layer.
        block: of each block.
        head: of the last layer.
    """

    entry_point: str
    embedding: tuple[OwnTensor, ...]
    block: tuple[OwnTensor, ...]
    head: tuple[OwnTensor, ...]

    def __post_init__(self) -> None:
        module, _, function = self.entry_point.partition(":")
        parts = [*module.split("."), function]
        if not all(part.isidentifier() for part in parts):
            raise InvalidWorkload(
                f"entry point {self.entry_point!r} must be module:function, for example mine:model",
                field="entry_point",
                code="Malformed",
            )
        for tensors in (self.embedding, self.block, self.head):
            names = [tensor.name for tensor in tensors]
            if not names or len(set(names)) < len(names):
                raise InvalidWorkload(
                    f"model {self.entry_point} has a layer with the tensors "
                    f"{', '.join(names) or 'none'}; each layer has some, each with its own name",
                    code="Malformed",
                )

    def allows_tp(self, tp: int) -> bool:
        """Whether a TP degree cuts every tensor evenly."""
        every = (*self.embedding, *self.block, *self.head)
        return not any(one.dim is not None and one.shape[one.dim] % tp for one in every)

    @staticmethod
    def from_json(data: object) -> OwnTensors:
        """Read what `dataclasses.asdict` wrote.

        Raises:
            InvalidWorkload: it is something else.
        """
        keys = {"entry_point", "embedding", "block", "head"}
        if not isinstance(data, Mapping) or set(data) != keys:
            raise InvalidWorkload(
                f"the model's own is {reprlib.repr(data)}; it must have the keys "
                f"{', '.join(sorted(keys))}, as `heddle model` prints them",
                code="Malformed",
            )
        try:
            layers = {key: _tensors(data[key]) for key in keys - {"entry_point"}}
            return OwnTensors(str(data["entry_point"]), **layers)
        except (TypeError, KeyError) as error:
            raise InvalidWorkload(
                f"the model's own cannot be read: {error}; `heddle model` prints it",
                code="Unreadable",
            ) from None


def _tensors(rows: Iterable[Mapping[str, object]]) -> tuple[OwnTensor, ...]:
    return tuple(OwnTensor(row["name"], _sizes(row["shape"]), row["dim"]) for row in rows)  # type: ignore[arg-type] # checked there


def _sizes(value: object) -> tuple[int, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(value)
    raise TypeError(f"a shape is a list, found {type(value).__name__}")
