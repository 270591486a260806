"""Where the state of a start comes from: the seed, a folder of weights, or a checkpoint.

A load is a start from another source, so it knows any plan, and no other rank.
Source: design of checkpoints ("A load is a start").
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor
from planner.plans.pieces import Piece
from worker.checkpoint.attempts import Attempt
from worker.checkpoint.load import Checkpoint
from worker.checkpoint.looking import unfit
from worker.checkpoint.manifest import InvalidManifest, Manifest, digest_of
from worker.checkpoint.vaults.open_vault import open_vault
from worker.contract import Directive, Restore, TrainingSpec
from worker.engine.seam import Parts, Progress
from worker.model.initial_weights import initial_rows
from worker.weights.hugging_face.reading import open_weights
from worker.weights.hugging_face.tensors import family_of

# Rows [start, stop) of a tensor's first weight, of a stack those of some experts: fp32, a tensor of
# its own.
FirstRows = Callable[[Tensor, int, int, range], torch.Tensor]


class StartSource(Protocol):
    """A source of the whole state at one step.

    Attributes:
        progress: of the state that it gives.
    """

    progress: Progress

    def fill(self, tensor: Tensor, box: Piece, parts: Parts) -> None:
        """Write the parts of a box, which are zero before.

        Raises:
            WorkerError: the source is damaged or gone.
        """


class FirstWeights:
    """The first weights of a job, and moments of zero."""

    def __init__(self, rows: FirstRows, progress: Progress | None = None) -> None:
        self.progress, self._rows = progress or Progress(), rows

    @staticmethod
    def of(model: ModelShape, spec: TrainingSpec) -> FirstWeights:
        """Those of a folder, else of the seed."""
        deviation = model.arithmetic.initial_deviation
        rows: FirstRows = functools.partial(initial_rows, spec.seed, deviation)
        if spec.weights is not None:
            rows = open_weights(Path(spec.weights), model, family_of(spec.config or {})).first_rows
        return FirstWeights(rows, Progress.of_start(spec))

    def fill(self, tensor: Tensor, box: Piece, parts: Parts) -> None:
        """Write the weight."""
        experts = range(box.expert_start, box.expert_stop)
        parts[0].copy_(self._rows(tensor, box.start, box.stop, experts))


class SavedState:
    """The state of a checkpoint, weights and moments.

    Raises:
        InvalidManifest: the manifest is another than the operator chose, or of another job.
        VaultFailed: it cannot be read.
    """

    def __init__(self, model: ModelShape, spec: TrainingSpec, restore: Restore) -> None:
        vault, attempt = open_vault(restore.path), Attempt(restore.epoch, restore.step)
        content = vault.read(attempt.manifest)
        if digest_of(content) != restore.manifest:
            raise InvalidManifest(
                f"{attempt.manifest} in {restore.path} is another one than the operator chose",
                code="damaged",
            )
        manifest = Manifest.from_bytes(content)
        # Its data were compared by the agents, before the operator chose it.
        why = unfit(manifest, model, spec, manifest.data_digest)
        if why is not None:
            raise InvalidManifest(why, code="other")
        self._checkpoint = Checkpoint(vault, attempt, manifest, model)
        self.progress = Progress(step=manifest.step, updates=manifest.updates, loss_scale=1)
        if spec.scaling is not None:
            self.progress.loss_scale = spec.scaling.initial
            if manifest.training.get("precision") == spec.precision:
                self.progress.loss_scale = manifest.loss_scale
                self.progress.good_steps = manifest.good_steps

    def fill(self, tensor: Tensor, box: Piece, parts: Parts) -> None:
        """Read every part."""
        del tensor
        self._checkpoint.fill(box, parts)


def start_source(model: ModelShape, directive: Directive) -> StartSource:
    """The source that a directive names."""
    spec = directive.training
    if directive.restore is None:
        return FirstWeights.of(model, spec)
    return SavedState(model, spec, directive.restore)
