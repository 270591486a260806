"""The parts of a job's final weights: one safetensors file a rank, and an index of all of them.

Replica 0 of the first template speaks for the model; of experts the first ranks that have all of
them do, which may be of other replicas too.  Tensors keep their names; a file says the rows of each
in its metadata (`<tensor>: start:stop`, of a stack of experts `start:stop of first:last`), so that
a reader can put a tensor together.  `weights.index.json` lists every tensor with its parts, and
every file with its size and SHA-256.  All ranks that write, write the same index, because their
disks may differ; the digests are agreed on before anything is written, so no disk holds up another.
Where all ranks see one folder, the first of them merges the parts (`worker.weights.merging`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor, held_tensors
from planner.plans.pieces import shard
from planner.plans.ranks import Seat
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
    seats: Sequence[Seat],
    seat: Seat,
    weights: Mapping[str, torch.Tensor],
    about: Mapping[str, object],
    ranks: Ranks,
) -> tuple[File, ...] | None:
    """This rank's files: its weights, then the index; None if it speaks for nothing.

    A collective of all ranks of the plan.  The tensors are read whenever a file is written, and
    must not change until then.

    Args:
        model: that was trained.
        seats: of all ranks of the plan.
        seat: of this rank.
        weights: {tensor name: this rank's shard}.
        about: further keys of the index; see `described`.
        ranks: of the plan.
    """
    file = _file(model, seat, weights, ranks.device) if speaks(model, seat) else None
    table = torch.zeros(ranks.size, _ROW, dtype=torch.int64)
    if file is not None:
        assert file.digest is not None  # it was read for it
        table[seat.rank] = torch.tensor([*struct.unpack("<4q", file.digest), file.size])
    ranks.all_reduce_(table, "sum")
    if file is None:
        return None
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    speakers = [one for one in seats if speaks(model, one)]
    index = dict(about) | _index(model, speakers, dtype, table)
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


def speaks(model: ModelShape, seat: Seat) -> bool:
    """Whether a seat writes a part of the model."""
    return bool(_spoken(model, seat))


def _spoken(model: ModelShape, seat: Seat) -> tuple[Tensor, ...]:
    """The tensors whose shard a seat writes."""
    if seat.pipeline.template_index:
        return ()
    is_first = seat.pipeline.replica == 0
    return tuple(
        tensor
        for tensor in held_tensors(model, seat.layers)
        if (seat.is_first_copy if tensor.experts else is_first)
    )


def _file(
    model: ModelShape, seat: Seat, weights: Mapping[str, torch.Tensor], device: Device
) -> File:
    tensors = _spoken(model, seat)
    rows = {tensor.name: _said(tensor, seat) for tensor in tensors}
    own = {tensor.name: weights[tensor.name] for tensor in tensors}
    name = _name(seat)
    return File.of(name, f"{name}.part", lambda: safetensors_chunks(own, rows, device))


def _name(seat: Seat) -> str:
    replica = seat.pipeline.replica
    of = f"-replica{replica}" if replica else ""
    return f"weights-stage{seat.stage}-slot{seat.slot}{of}.safetensors"


def _said(tensor: Tensor, seat: Seat) -> str:
    """What a file says of a shard: its rows, 0:1 of a tensor that is not cut, and its experts."""
    if tensor.dim is None:
        return "0:1"
    box = shard(tensor, seat)
    rows = f"{box.start}:{box.stop}"
    return f"{rows} of {box.expert_start}:{box.expert_stop}" if tensor.experts else rows


def _part(tensor: Tensor, seat: Seat) -> dict[str, object]:
    """The same for the index."""
    if tensor.dim is None:
        return {"file": _name(seat), "rows": (0, 1)}
    box = shard(tensor, seat)
    found: dict[str, object] = {"file": _name(seat), "rows": (box.start, box.stop)}
    return found | {"experts": (box.expert_start, box.expert_stop)} if tensor.experts else found


def _index(
    model: ModelShape, speakers: Sequence[Seat], dtype: str, table: torch.Tensor
) -> dict[str, object]:
    """The content of the index; of a tensor that is not cut, only the first slot's copy."""
    files: dict[str, object] = {}
    tensors: dict[str, dict[str, Any]] = {}
    for seat in speakers:
        *words, size = table[seat.rank].tolist()
        digest = struct.pack("<4q", *words).hex()
        files[_name(seat)] = {"bytes": size, "sha256": digest}
        for tensor in _spoken(model, seat):
            is_own = tensor.layer in seat.layers  # no tied weight that another stage writes
            if is_own and (tensor.dim is not None or not seat.slot):
                about: dict[str, Any] = {
                    "dtype": dtype,
                    "shape": tensor.shape,
                    "dim": tensor.dim,
                    "parts": [],
                }
                about = tensors.setdefault(tensor.name, about)
                about["parts"].append(_part(tensor, seat))
    return {"files": files, "tensors": tensors}
