"""The ends of all ranks of a plan, one after the other, without a process group."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from planner.model.shape import ModelShape
from planner.plans.ranks import Seat
from worker.contract import TrainingSpec
from worker.device.device import CPU
from worker.weights.ending import Ending, ending


class Ranks:
    """Ranks in threads that add their tensors up."""

    device = CPU

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._lock = threading.Lock()
        self._total: torch.Tensor | None = None

    def all_reduce_(self, tensor: torch.Tensor, op: object) -> None:
        assert op == "sum"
        with self._lock:
            self._total = tensor.clone() if self._total is None else self._total + tensor
        self._barrier.wait(60)
        assert self._total is not None
        tensor.copy_(self._total)
        if self._barrier.wait(60) == 0:
            self._total = None
        self._barrier.wait(60)


def endings(
    model: ModelShape,
    seats: Sequence[Seat],
    weights: Sequence[Mapping[str, torch.Tensor]],
    spec: TrainingSpec,
    outputs: Sequence[str] | None = None,
) -> list[Ending]:
    """What each rank has to do; `outputs` where disks differ."""
    ranks = Ranks(len(seats))

    def of(seat: Seat) -> Ending:
        mine = spec
        if outputs is not None:
            mine = spec.model_copy(update={"output": outputs[seat.rank]})
        return ending(model, seats, seat, weights[seat.rank], mine, spec.steps, ranks)

    with ThreadPoolExecutor(len(seats)) as pool:
        return list(pool.map(of, seats))


def end(
    model: ModelShape,
    seats: Sequence[Seat],
    weights: Sequence[Mapping[str, torch.Tensor]],
    spec: TrainingSpec,
) -> list[Ending]:
    """End a job: the other ranks first, for the first one waits for them."""
    found = endings(model, seats, weights, spec)
    for one in reversed(found):
        for step in one.steps:
            step.run(lambda: True)
    return found
