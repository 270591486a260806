"""Facts for the layers of a stage about the micro-batch that they compute.

The engine sets the context before each forward pass; a pass that is computed again has its own
back, and so drops the same numbers and sees the same documents.
Legend: b micro-batch, S sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from worker.device.device import CPU, Device


class Documents(NamedTuple):
    """The documents of a micro-batch; each is computed as if it were alone.

    Attributes:
        lengths: tokens of each, row by row; together b * S, and none goes on in the next row.
        positions: of each token in its document, int64 [b, S].
    """

    lengths: tuple[int, ...]
    positions: torch.Tensor

    @staticmethod
    def of(rows: Sequence[Sequence[int]]) -> Documents:
        """From the lengths of the documents of each row, whose sums are equal."""
        lengths = tuple(length for row in rows for length in row)
        positions = torch.cat([torch.arange(length) for length in lengths])
        return Documents(lengths, positions.view(len(rows), -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardContext:
    """One forward pass of a stage.

    Attributes:
        seed: of the job.
        samples: ids of the samples of the micro-batch, in order; None: nothing is dropped, as in
            an evaluation.
        documents: that attention does not cross; None: a row is one.
        device: that computes it.
        is_empty: whether no sample is in it: other replicas have more micro-batches.
        sample_weight: what a loss that a sample has of its own counts for, scaled as the loss of
            the step; 0: nothing.
    """

    seed: int
    samples: range | None = None
    documents: Documents | None = None
    device: Device = CPU
    is_empty: bool = False
    sample_weight: float = 0.0


class CurrentContext:
    """The context of a stage, which all its layers read; the engine sets it.

    Attributes:
        context: of the forward pass; None: nothing is dropped, and a row is one document.
    """

    def __init__(self) -> None:
        self.context: ForwardContext | None = None

    @property
    def documents(self) -> Documents | None:
        """That attention does not cross; None: a row is one."""
        return None if self.context is None else self.context.documents

    @property
    def device(self) -> Device:
        """That computes."""
        return CPU if self.context is None else self.context.device

    @property
    def is_empty(self) -> bool:
        """Whether no sample is computed."""
        return self.context is not None and self.context.is_empty

    @property
    def sample_weight(self) -> float:
        """What a sample's own loss counts for; 0: nothing."""
        return 0.0 if self.context is None else self.context.sample_weight

    @property
    def drops(self) -> bool:
        """Whether anything is dropped."""
        return self.context is not None and self.context.samples is not None

    @contextmanager
    def at(self, context: ForwardContext | None) -> Iterator[None]:
        """Compute as of another context: a forward pass that is done again drops the same."""
        before, self.context = self.context, context
        try:
            yield
        finally:
            self.context = before
