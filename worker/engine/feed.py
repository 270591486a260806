"""Input of the stages of one replica's pipeline: its micro-batches of a step, or of an evaluation.

Replicas in lock-step have equally many rounds: who has fewer micro-batches gets empty ones, whose
labels count for nothing and whose tokens visit no expert.

Each comes as DeepSpeed takes it: the tokens for the first stage, and for the last one the labels
with the weight that their mean loss has in that of the whole batch.  What all stages are told of
it, its context, comes apart, and no token is read for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain

import torch

from planner.plans.ranks import Pipeline
from worker.contract import TrainingSpec
from worker.data.batches import MicroBatch, micro_batches
from worker.data.dataset import Dataset
from worker.data.held_out import HeldOut
from worker.data.prefetch import Prefetch, Waiting
from worker.device.device import CPU, Device
from worker.engine.seam import Progress
from worker.model.forward_context import Documents, ForwardContext
from worker.training_settings import IGNORED

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
        waiting: Waiting = nullcontext,
    ) -> None:
        """`dataset` is the training part; nothing is read yet.

        `waiting` is entered while a disk is waited for.
        """
        self.held_out, self._device, self._waiting = held_out, device, waiting
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
            ),
            waiting=waiting,
        )

    def of_step(self, step: int) -> Iterator[Batch]:
        """The micro-batches of a step, read ahead."""
        own = self._pipeline.num_micro_batches
        found = map(self._batch_of, self._prefetch.of_step(step, own))
        return chain(found, self._empty(self._pipeline.rounds - own))

    def contexts_of_step(self, progress: Progress) -> Iterator[ForwardContext]:
        """Facts for the layers in each forward pass of the next step."""
        spec, size = self._spec, self._pipeline.template.micro_batch
        first = progress.step * spec.global_batch + self._pipeline.first_sample
        for index in range(self._pipeline.num_micro_batches):
            samples = range(first + index * size, first + (index + 1) * size)
            documents = None
            if spec.data.document_mask:
                with self._waiting():
                    rows = [self._dataset.documents(spec.seed, sample) for sample in samples]
                documents = self._documents_of(rows)
            yield ForwardContext(
                seed=spec.seed,
                samples=samples,
                documents=documents,
                device=self._device,
                sample_weight=progress.loss_scale / spec.global_batch,
            )
        yield from self._empty_contexts(self._pipeline.rounds - self._pipeline.num_micro_batches)

    def contexts_of_evaluation(self) -> Iterator[ForwardContext]:
        """Likewise of an evaluation, which drops nothing."""
        held_out, spec, run = self.held_out, self._spec, self._run()
        size = self._pipeline.template.micro_batch
        for rows in held_out.documents(run, size) if held_out else ():
            documents = self._documents_of(rows) if spec.data.document_mask else None
            yield ForwardContext(seed=spec.seed, documents=documents, device=self._device)
        yield from self._empty_contexts(self._rounds() - self._own_rounds())

    def of_evaluation(self) -> list[Batch]:
        """The micro-batches of an evaluation; a replica without any has none."""
        if self.held_out is None:
            return []
        size = self._pipeline.template.micro_batch
        with self._waiting():
            read = list(self.held_out.micro_batches(self._run(), size))
        found = map(self._batch_of, read)
        return [*found, *self._empty(self._rounds() - self._own_rounds())]

    def _run(self) -> range:
        """Which of the held-out samples are this replica's."""
        return self._run_of(self._pipeline.replica)

    def _run_of(self, replica: int) -> range:
        if self.held_out is None:
            return range(0)
        template, own = self._pipeline.template, self._pipeline.replica
        counts, size = template.micro_batches, template.micro_batch
        first = self._pipeline.first_sample + size * (sum(counts[:replica]) - sum(counts[:own]))
        return self.held_out.run_of(first, size * counts[replica], self._spec.global_batch)

    def _own_rounds(self, replica: int | None = None) -> int:
        """Micro-batches of a replica in an evaluation."""
        run = self._run() if replica is None else self._run_of(replica)
        return -(-len(run) // self._pipeline.template.micro_batch)

    def _rounds(self) -> int:
        """Micro-batches that pass through the pipeline in an evaluation, empty ones too."""
        template = self._pipeline.template
        if not template.is_in_lock_step:
            return self._own_rounds()
        return max(self._own_rounds(replica) for replica in range(template.replicas))

    def _empty(self, count: int) -> Iterator[Batch]:
        """So many micro-batches without a sample."""
        shape = (self._pipeline.template.micro_batch, self._spec.sequence_length)
        for _ in range(count):
            tokens = torch.zeros(shape, dtype=torch.int64)
            yield self._batch_of(MicroBatch(tokens, torch.full_like(tokens, IGNORED), 0.0))

    def _empty_contexts(self, count: int) -> Iterator[ForwardContext]:
        for _ in range(count):
            yield ForwardContext(seed=self._spec.seed, device=self._device, is_empty=True)

    def close(self) -> None:
        """Read no more."""
        self._prefetch.close()

    def _batch_of(self, batch: MicroBatch) -> Batch:
        weight, put = torch.tensor(batch.weight, dtype=torch.float64), self._device.put
        return put(batch.tokens), (put(batch.labels), put(weight))

    def _documents_of(self, rows: Sequence[Sequence[int]]) -> Documents:
        found = Documents.of(rows)
        return found._replace(positions=self._device.put(found.positions))
