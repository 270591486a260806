"""Rank entries with one fault each: the real process with one service wrapped.

An agent is told the entry (`--rank-entry`), so the fault sits where a real one would: in a rank,
not in its environment.
"""

from __future__ import annotations

import os
import socket
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from migration.transport import Transport
from planner.model.tensors import Tensor
from worker.control.channel import Channel
from worker.engine.deepspeed import DeepSpeedEngine
from worker.engine.seam import Engine, Parts, StageBuild
from worker.rank.process import GlooServices
from worker.rank.rank import Rank

FLIP_EPOCH = 2


def _flip(tensor: torch.Tensor) -> None:
    """Flip the lowest bit of the first element."""
    tensor.view(torch.int32).view(-1)[0] ^= 1


class _FlippingTransport:
    """Flips one bit of the first message it receives, as a bad cable would."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def exchange(self, sends: Any, receives: Any) -> None:
        self._inner.exchange(sends, receives)
        for _, body in receives[:1]:
            body[-1] ^= 1


class FlipInFlight(GlooServices):
    """One bit of a message changes on its way."""

    def form_transport(self, store: Any, prefix: str, rank: int, size: int) -> Transport:
        return _FlippingTransport(super().form_transport(store, prefix, rank, size))  # type: ignore[return-value]


class FlipAfterVote(GlooServices):
    """One bit of one moved moment changes after all have verified and voted."""

    def build_engine(self, build: StageBuild) -> Engine:
        flipped: list[str] = []

        def damaged(tensor: Tensor) -> Parts:
            parts = build.source(tensor)
            if len(parts) > 1 and build.seat.rank == 0 and not flipped:
                _flip(parts[1])
                flipped.append(tensor.name)
            return parts

        return super().build_engine(replace(build, source=damaged))


class WrongWeight(GlooServices):
    """The first replica counts 1 % too much."""

    def build_engine(self, build: StageBuild) -> Engine:
        engine = super().build_engine(build)
        assert isinstance(engine, DeepSpeedEngine)
        if build.seat.pipeline.template_index == 0:
            engine._weight *= 1.01
        return engine


class Pausing(GlooServices):
    """Stops at a part of a change that the test names, until the test lets it go.

    `HEDDLE_TEST_PAUSE` is a folder.  A file `<part>` in it asks every rank to stop there; each
    writes `<part>.<pid>` when it has, and goes on when `<part>` is gone.
    """

    def on_phase(self, name: str) -> None:
        folder = Path(os.environ["HEDDLE_TEST_PAUSE"])
        gate = folder / name
        if gate.exists():
            (folder / f"{name}.{os.getpid()}").touch()
            while gate.exists():
                time.sleep(0.005)


class CountingOldTensors(GlooServices):
    """Writes how many tensors of the epoch before last are still alive into `HEDDLE_TEST_COUNT`."""

    _seen: list[list[weakref.ref[torch.Tensor]]]

    def build_engine(self, build: StageBuild) -> Engine:
        engine = super().build_engine(build)
        if not hasattr(self, "_seen"):
            self._seen = []
        if len(self._seen) > 1:
            alive = sum(reference() is not None for reference in self._seen[-2])
            path = Path(os.environ["HEDDLE_TEST_COUNT"]) / f"{os.getpid()}.{len(self._seen)}"
            path.write_text(str(alive))
        self._seen.append([weakref.ref(t) for parts in engine.shards().values() for t in parts])
        return engine


def _main(services: type[GlooServices]) -> Callable[..., None]:
    def main(
        connection: socket.socket, *, pod: str, slot: int, emulate: bool, timeout_s: float
    ) -> None:
        Rank(Channel(connection), pod, slot, services(emulate=emulate, timeout_s=timeout_s)).run()

    return main


flip_in_flight = _main(FlipInFlight)
flip_after_vote = _main(FlipAfterVote)
wrong_weight = _main(WrongWeight)
pausing = _main(Pausing)
counting = _main(CountingOldTensors)
