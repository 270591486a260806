"""Models of the user's own: an entry point `module:function` gives layers, tensors and loss.

The function takes no argument and returns an `OwnModel`.  Its layers follow the rules that keep
`worker.model.model` exact: what TP leaves whole is computed alike by every rank of the group, and
`TensorParallel.copy` and `TensorParallel.reduce` stand around what it cuts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch

from planner.errors import InvalidWorkload
from planner.model.own import OwnTensor, OwnTensors
from planner.model.shape import Kind, ModelShape
from worker.model.loss import vocabulary_loss
from worker.model.model import Layer, layer_class
from worker.model.parallel import TensorParallel

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
TENSORS = dict[str, tuple[tuple[int, ...], int | None]]
PARTS: tuple[Kind, ...] = ("embedding", "block", "head")


class OwnModel(NamedTuple):
    """What an entry point returns.

    Attributes:
        shape: name, number of blocks, vocabulary, and the sizes of the decoder that it costs about
            as much as; `hidden` is the width of what goes from layer to layer [b, S, hidden].
        layers: the class of each kind of layer, `embedding`, `block` and `head`.
        tensors: of each kind, {name: (shape of the whole tensor, dimension that TP cuts or None)}.
            One-dimensional tensors begin as ones, those named `..._bias` as zeros, all others at
            random.
        loss: of a TP group: what the head gives, in fp32, and labels [b, S], IGNORED where there
            is nothing to learn -> the mean over all others of the micro-batch.
    """

    shape: ModelShape
    layers: Mapping[str, type[Layer]]
    tensors: Mapping[str, TENSORS]
    loss: Callable[[TensorParallel], Loss]


@cache
def own_model(entry_point: str) -> OwnModel:
    """What an entry point returns.

    Raises:
        InvalidWorkload: it cannot be called, or returns something else; one sentence.
    """
    module, _, function = entry_point.partition(":")
    if not (module and function):
        raise InvalidWorkload(
            f"entry point {entry_point!r} is not module:function; write for example mixer:model",
            field="entry_point",
            code="Malformed",
        )
    try:
        found = getattr(importlib.import_module(module), function)()
    except Exception as error:  # it is the user's code
        raise InvalidWorkload(
            f"entry point {entry_point} failed with {type(error).__name__}: {error}; it must be "
            "module:function, on PYTHONPATH, and return a worker.model.own.OwnModel",
            code="Failed",
        ) from None
    if not isinstance(found, OwnModel) or not all(
        set(part) == set(PARTS) for part in (found.layers, found.tensors)
    ):
        raise InvalidWorkload(
            f"entry point {entry_point} must return a worker.model.own.OwnModel with layers and "
            f"tensors of {', '.join(PARTS)}, found {type(found).__name__}",
            code="Malformed",
        )
    return found


def shape_of(entry_point: str) -> ModelShape:
    """The model of an entry point, as planner and ranks know it.

    Raises:
        InvalidWorkload: see `own_model`, or its tensors are none.
    """
    found = own_model(entry_point)
    parts = {
        part: tuple(OwnTensor(name, tuple(shape), dim) for name, (shape, dim) in rows.items())
        for part, rows in found.tensors.items()
    }
    return replace(found.shape, own=OwnTensors(entry_point, **parts))


def class_of(model: ModelShape, index: int) -> type[Layer]:
    """The class of layer `index` in [embedding, block 1..L, head], ours or the user's.

    Raises:
        InvalidWorkload: the code here is that of another model.
    """
    if model.own is None:
        return layer_class(model, index)
    if replace(shape_of(model.own.entry_point), name=model.name) != model:
        raise InvalidWorkload(
            f"entry point {model.own.entry_point} gives another model here than the job says; "
            "bring its code to the job's on all nodes",
            code="Mismatch",
        )
    return own_model(model.own.entry_point).layers[model.kind(index)]


def loss_of(model: ModelShape, tp: TensorParallel) -> Loss:
    """The loss of a model, ours or the user's."""
    if model.own is None:
        return vocabulary_loss(tp)
    own = own_model(model.own.entry_point).loss(tp)
    return lambda given, labels: own(given.float(), labels)
