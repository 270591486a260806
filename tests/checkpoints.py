"""A model's state, and saves of it by all ranks of a plan, for tests of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from planner.model.shape import ModelShape
from planner.model.tensors import model_tensors
from planner.plans.pieces import Piece
from planner.plans.plan import Plan
from planner.plans.state_rule import PARTS
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.boxes import written
from worker.checkpoint.manifest import VERSION, Manifest, SavedStep
from worker.checkpoint.save import commit, save_part
from worker.checkpoint.vaults.vault import Vault
from worker.contract import TrainingSpec
from worker.model.boxes import chunks_of, view


class State:
    """Random numbers for each part of each tensor of a model at one step."""

    def __init__(self, model: ModelShape, step: int) -> None:
        generator = torch.Generator().manual_seed(step)
        self.model, self.step = model, step
        self._tensors = {tensor.name: tensor for tensor in model_tensors(model)}
        self.parts = {
            name: tuple(torch.randn(tensor.shape, generator=generator) for _ in PARTS)
            for name, tensor in self._tensors.items()
        }

    def read(self, box: Piece) -> tuple[torch.Tensor, ...]:
        """The parts of a box."""
        tensor = self._tensors[box.tensor]
        whole = Piece(tensor.name, 0, tensor.rows, 0, max(1, tensor.experts))
        return view(tensor, whole, self.parts[box.tensor], box)

    def chunks(self, box: Piece) -> list[Iterator[torch.Tensor]]:
        """The chunks of each part of a box."""
        return [chunks_of(part) for part in self.read(box)]


@cache
def state(model: ModelShape, step: int) -> State:
    """The state of a step, made once."""
    return State(model, step)


def about(model: ModelShape, step: int) -> SavedStep:
    """The state of a step, as a save tells of it."""
    return SavedStep(
        step=step,
        updates=step,
        loss_scale=1,
        good_steps=0,
        training={"model": model.name},
        shape={"name": model.name},
        plan_digest="plan",
    )


def manifest_of(known: SavedStep, data_digest: str = "data", version: int = VERSION) -> Manifest:
    """A manifest without files."""
    return Manifest(**dict(known), data_digest=data_digest, version=version, files={}, boxes=())


def of_a_job(model: ModelShape, step: int, **settings: Any) -> SavedStep:
    """The same, with the settings of a job."""
    known = {"model": model.name, "data": "text", "global_batch": 8, "sequence_length": 16}
    spec = TrainingSpec(**{**known, "steps": 400, **settings})
    return about(model, step).model_copy(
        update={"shape": model.to_json(), "training": spec.model_dump(mode="json")}
    )


def save(
    vault: Vault,
    attempt: Attempt,
    plan: Plan,
    held: State,
    known: SavedStep | None = None,
    data_digest: str = "data",
) -> Manifest | None:
    """Both phases of a save by all ranks of a plan."""
    pieces, known = written(held.model, plan), known or about(held.model, attempt.step)
    for rank, mine in pieces.items():
        save_part(vault, attempt, rank, held.model, mine, held.chunks, known.run)
    return commit(vault, attempt, len(pieces), held.model, known, data_digest)
