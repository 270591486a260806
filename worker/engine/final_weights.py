"""The final weights of a job.

Every rank writes the shards that it alone speaks for, one safetensors file a rank.

Replica 0 of the first template speaks for the model.  Tensors keep their names; a shard's file says
its rows in the metadata (`<tensor>: start:stop`), so that a reader can put a tensor together along
its shard dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file

from planner.model.shape import ModelShape
from planner.model.tensors import layer_tensors
from planner.plans.ranks import Seat
from worker.engine.seam import Parts


def write_weights(
    folder: str, model: ModelShape, seat: Seat, shards: Mapping[str, Parts]
) -> Path | None:
    """Write this rank's file into `folder` and return its path; None if another pipeline speaks."""
    if seat.pipeline.template_index or seat.pipeline.replica:
        return None
    rows: dict[str, str] = {}
    for layer in seat.layers:
        for tensor in layer_tensors(model, layer):
            size = 1 if tensor.dim is None else tensor.shape[tensor.dim]
            share = (
                (0, 1)
                if tensor.dim is None
                else (seat.slot * size // seat.tp, (seat.slot + 1) * size // seat.tp)
            )
            rows[tensor.name] = f"{share[0]}:{share[1]}"
    path = Path(folder) / f"weights-stage{seat.stage}-slot{seat.slot}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: parts[0].contiguous() for name, parts in shards.items()}, path, metadata=rows)
    return path
