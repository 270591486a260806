"""Input of the stages of one replica's pipeline: its micro-batches of a step, or of an evaluation.

Each comes as DeepSpeed takes it: the tokens for the first stage, and for the last one the labels
with the weight that their mean loss has in that of the whole batch.  What all stages are told of
it, its context, comes apart, and no token is read for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from planner.plans.ranks import Pipeline
from worker.contract import TrainingSpec
from worker.data.batches import MicroBatch, micro_batches
from worker.data.dataset import Dataset
from worker.data.held_out import HeldOut
from worker.data.prefetch import Prefetch
from worker.device.device import CPU, Device
from worker.model.forward_context import Documents, ForwardContext

Batch = tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


class Feed:
    """The data of one replica.

    Attributes:
        held_out: what the job is evaluated on; None: it is not.
    """

    def __init__(
        self,
        dataset: Dataset,
        held_out: HeldOut | None,
        spec: TrainingSpec,
        pipeline: Pipeline,
        device: Device = CPU,
    ) -> None:
        """`dataset` is the training part; nothing is read yet."""
        self.held_out, self._device = held_out, device
        self._dataset, self._spec, self._pipeline = dataset, spec, pipeline
        self._prefetch = Prefetch(
            lambda step: micro_batches(
                dataset,
                spec.seed,
                step,
                spec.global_batch,
                pipeline.first_sample,
                pipeline.num_micro_batches,
                pipeline.template.micro_batch,
            )
        )

    def of_step(self, step: int) -> Iterator[Batch]:
        """The micro-batches of a step, read ahead."""
        return map(self._batch_of, self._prefetch.of_step(step, self._pipeline.num_micro_batches))

    def contexts_of_step(self, step: int) -> Iterator[ForwardContext]:
        """Facts for the layers in each forward pass of a step."""
        spec, size = self._spec, self._pipeline.template.micro_batch
        first = step * spec.global_batch + self._pipeline.first_sample
        for index in range(self._pipeline.num_micro_batches):
            samples = range(first + index * size, first + (index + 1) * size)
            documents = None
            if spec.data.document_mask:
                rows = [self._dataset.documents(spec.seed, sample) for sample in samples]
                documents = self._documents_of(rows)
            yield ForwardContext(spec.seed, samples, documents, self._device)

    def contexts_of_evaluation(self) -> Iterator[ForwardContext]:
        """Likewise of an evaluation, which drops nothing."""
        held_out, spec, run = self.held_out, self._spec, self._run()
        size = self._pipeline.template.micro_batch
        for rows in held_out.documents(run, size) if held_out else ():
            documents = self._documents_of(rows) if spec.data.document_mask else None
            yield ForwardContext(spec.seed, None, documents, self._device)

    def of_evaluation(self) -> list[Batch]:
        """The micro-batches of an evaluation; a replica without any has none."""
        if self.held_out is None:
            return []
        size = self._pipeline.template.micro_batch
        return [*map(self._batch_of, self.held_out.micro_batches(self._run(), size))]

    def _run(self) -> range:
        """Which of the held-out samples are this replica's."""
        if self.held_out is None:
            return range(0)
        pipeline = self._pipeline
        return self.held_out.run_of(
            pipeline.first_sample, pipeline.samples, self._spec.global_batch
        )

    def close(self) -> None:
        """Read no more."""
        self._prefetch.close()

    def _batch_of(self, batch: MicroBatch) -> Batch:
        weight, put = torch.tensor(batch.weight, dtype=torch.float64), self._device.put
        return put(batch.tokens), (put(batch.labels), put(weight))

    def _documents_of(self, rows: Sequence[Sequence[int]]) -> Documents:
        found = Documents.of(rows)
        return found._replace(positions=self._device.put(found.positions))
