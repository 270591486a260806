"""The parts of a job's final weights: one safetensors file a rank, and an index of all of them.

Replica 0 of the first template speaks for the model.  Tensors keep their names; a file says the
rows of each in its metadata (`<tensor>: start:stop`), so that a reader can put a tensor together
along its shard dimension.  `weights.index.json` lists every tensor with its parts, and every file
with its size and SHA-256.  All ranks that write, write the same index, because their disks may
differ; the digests are agreed on before anything is written, so no disk holds up another.  Where
all ranks see one folder, the first of them merges the parts (`worker.weights.merging`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, held_tensors, layer_tensors
from planner.plans.ranks import Pipeline, Seat
from worker.contract import TrainingSpec
from worker.device.device import Device
from worker.weights.files import File, safetensors_chunks

INDEX = "weights.index.json"
_ROW = 5  # of the table of digests: four words of SHA-256, and the size


class Ranks(Protocol):
    """Exchange for digests; see `worker.world.world.World`."""

    size: int
    device: Device

    def all_reduce_(self, tensor: torch.Tensor, op: Any) -> None:
        """Reduce a host tensor in place over all ranks."""


def own_files(
    model: ModelShape,
    seat: Seat,
    weights: Mapping[str, torch.Tensor],
    about: Mapping[str, object],
    ranks: Ranks,
) -> tuple[File, ...] | None:
    """This rank's files: its weights, then the index; None if another pipeline speaks.

    A collective of all ranks of the plan.  The tensors are read whenever a file is written, and
    must not change until then.

    Args:
        model: that was trained.
        seat: of this rank.
        weights: {tensor name: this rank's shard}.
        about: further keys of the index; see `described`.
        ranks: of the plan.
    """
    file = _file(model, seat, weights, ranks.device) if speaks(seat) else None
    table = torch.zeros(ranks.size, _ROW, dtype=torch.int64)
    if file is not None:
        assert file.digest is not None  # it was read for it
        table[seat.rank] = torch.tensor([*struct.unpack("<4q", file.digest), file.size])
    ranks.all_reduce_(table, "sum")
    if file is None:
        return None
    index = dict(about) | _index(model, seat.pipeline, weights, table)
    text = json.dumps(index, indent=1).encode()
    return file, File.of(INDEX, f"{INDEX}.{seat.rank}.part", lambda: iter([text]))


def described(model: ModelShape, spec: TrainingSpec, step: int) -> dict[str, object]:
    """The index's facts about the model: all that a merge needs besides the parts."""
    return {
        "model": model.name,
        "step": step,
        "shape": model.to_json(),
        "config": spec.config,
        "folder": spec.folder,
    }


def speaks(seat: Seat) -> bool:
    """Whether a seat is of the pipeline that speaks for the model."""
    return not (seat.pipeline.template_index or seat.pipeline.replica)


def _file(
    model: ModelShape, seat: Seat, weights: Mapping[str, torch.Tensor], device: Device
) -> File:
    tensors = held_tensors(model, seat.layers)
    rows = {t.name: "{}:{}".format(*_rows(t, seat.slot, seat.tp)) for t in tensors}
    name = _name(seat.stage, seat.slot)
    return File.of(name, f"{name}.part", lambda: safetensors_chunks(weights, rows, device))


def _name(stage: int, slot: int) -> str:
    return f"weights-stage{stage}-slot{slot}.safetensors"


def _rows(tensor: Tensor, slot: int, tp: int) -> tuple[int, int]:
    """[start, stop) of a slot's shard along the tensor's shard dimension; 0:1 if it has none."""
    if tensor.dim is None:
        return 0, 1
    size = tensor.shape[tensor.dim]
    return slot * size // tp, (slot + 1) * size // tp


def _index(
    model: ModelShape,
    pipeline: Pipeline,
    weights: Mapping[str, torch.Tensor],
    table: torch.Tensor,
) -> dict[str, object]:
    """The content of the index; of a tensor that is not cut, only the first slot's copy."""
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    bounds = pipeline.template.layer_bounds()
    files: dict[str, object] = {}
    tensors: dict[str, object] = {}
    for stage, ranks in enumerate(pipeline.ranks):
        for slot, rank in enumerate(ranks):
            *words, size = table[rank].tolist()
            digest = struct.pack("<4q", *words).hex()
            files[_name(stage, slot)] = {"bytes": size, "sha256": digest}
        for layer in range(bounds[stage], bounds[stage + 1]):
            for tensor in layer_tensors(model, layer):
                slots = range(1 if tensor.dim is None else len(ranks))
                parts = [
                    {"file": _name(stage, slot), "rows": _rows(tensor, slot, len(ranks))}
                    for slot in slots
                ]
                tensors[tensor.name] = {
                    "dtype": dtype,
                    "shape": tensor.shape,
                    "dim": tensor.dim,
                    "parts": parts,
                }
    return {"files": files, "tensors": tensors}
