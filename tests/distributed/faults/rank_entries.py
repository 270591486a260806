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
from pathlib import Path
from typing import Any

import torch

from migration.transport import Transport
from tests.fakes.gloo_group import form_garbage
from worker.control.channel import Channel
from worker.device.broken import Broken
from worker.device.device import CpuDevice
from worker.engine.deepspeed import DeepSpeedEngine, begin
from worker.engine.seam import Engine, StageBuild
from worker.rank.process import GlooServices
from worker.rank.rank import Rank
from worker.world.nccl_wire import NcclWire
from worker.world.pace import Pace
from worker.world.payload import Payload

FLIP_EPOCH = 2
SLOW_S = 6.0  # longer than the peer time-out of the campaign


def _flip(tensor: torch.Tensor) -> None:
    """Flip the lowest bit of the first element."""
    tensor.view(torch.int32).view(-1)[0] ^= 1


class _FlippingTransport:
    """Flips one bit of whatever it receives, as a bad cable would."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def post_receive(self, peer: int, tensor: torch.Tensor) -> Any:
        pending = self._inner.post_receive(peer, tensor)
        return _FlippingPending(pending, tensor)


class _FlippingPending:
    """Flips the last bit of what came."""

    def __init__(self, inner: Any, tensor: torch.Tensor) -> None:
        self._inner, self._tensor = inner, tensor

    def wait(self) -> None:
        self._inner.wait()
        self._tensor.view(-1).view(torch.uint8)[-1] ^= 1


class FlipInFlight(GlooServices):
    """One bit of a message changes on its way."""

    def form_transport(self, store: Any, prefix: str, rank: int, size: int) -> Transport:
        return _FlippingTransport(super().form_transport(store, prefix, rank, size))  # type: ignore[return-value]


class FlipAfterVote(GlooServices):
    """One bit of one moment changes after all have verified and voted."""

    def build_engine(self, build: StageBuild) -> Engine:
        self._moment = next(iter(build.shards.values()))[1] if build.seat.rank == 0 else None
        self._built = getattr(self, "_built", 0) + 1
        return super().build_engine(build)

    def on_phase(self, name: str) -> None:
        if name == "flip" and self._built == FLIP_EPOCH and self._moment is not None:
            _flip(self._moment)


class WrongWeight(GlooServices):
    """The first replica counts 1 % too much."""

    def build_engine(self, build: StageBuild) -> Engine:
        engine = super().build_engine(build)
        assert isinstance(engine, DeepSpeedEngine)
        if build.seat.pipeline.template_index == 0:
            module = engine._pipeline.module
            right = module.loss_fn
            module.loss_fn = lambda logits, given: 1.01 * right(logits, given)
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


class Copying(CpuDevice):
    """A processor whose numbers are read through staging memory, as those of a GPU are."""

    def host(self, tensor: torch.Tensor, broken: Broken | None = None) -> torch.Tensor:
        return super().host(self.snapshot(tensor), broken)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.snapshot(tensor)


class Staged(Pausing):
    """Likewise, over wires and a transport through staging memory."""

    def __init__(self, *, emulate: bool, store_key: str) -> None:
        super().__init__(emulate=emulate, store_key=store_key, device=Copying())


class Connecting(Pausing):
    """Likewise, on NCCL's wire and transport over gloo's groups, which form in the same way.

    They end as NCCL's: nobody notices a dead peer there, and garbage is in what was awaited.
    """

    def __init__(self, *, emulate: bool, store_key: str) -> None:
        super().__init__(emulate=emulate, store_key=store_key)
        self.payload = Payload("nccl", "nccl over gloo", NcclWire.over(form_garbage))


class Slow(GlooServices):
    """Rank 1 of a plan takes `SLOW_S` longer for a build, a transfer and one step.

    A thread of its own goes on sending heartbeats; its peers wait.
    """

    def on_phase(self, name: str) -> None:
        if name == "transfer" and self.__dict__.get("_rank") == 1:
            time.sleep(SLOW_S)

    def build_engine(self, build: StageBuild) -> Engine:
        engine = super().build_engine(build)
        assert isinstance(engine, DeepSpeedEngine)
        self._rank = build.seat.rank
        if self._rank == 1:
            time.sleep(SLOW_S)
            engine.pace = _OnceSlow(engine.pace)
        return engine


class _OnceSlow:
    """The pace of an engine whose fourth micro-batch takes long."""

    def __init__(self, inner: Pace) -> None:
        self._inner, self._count = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self) -> None:
        self._inner.forward()
        self._count += 1
        if self._count == 4:
            time.sleep(SLOW_S)


class CountingOldTensors(GlooServices):
    """Writes how much of the engine before last is still alive into `HEDDLE_TEST_COUNT`.

    Tensors that have been adopted since are the state's, and are not counted.
    """

    def build_engine(self, build: StageBuild) -> Engine:
        engine = super().build_engine(build)
        assert isinstance(engine, DeepSpeedEngine)
        seen = self.__dict__.setdefault("_seen", [])
        shards = [tensor for parts in build.shards.values() for tensor in parts]
        pipeline = engine._pipeline
        things = [*shards, *pipeline.module.parameters(), engine, pipeline]
        if len(seen) > 1:
            adopted = {id(tensor) for tensor in shards} | {id(r()) for r in seen[-1]}
            alive = [r() for r in seen[-2] if r() is not None and id(r()) not in adopted]
            path = Path(os.environ["HEDDLE_TEST_COUNT"]) / f"{os.getpid()}.{len(seen)}"
            path.write_text(str(len(alive)))
        seen.append([weakref.ref(thing) for thing in things])
        return engine


def _main(services: type[GlooServices]) -> Callable[..., None]:
    def main(
        connection: socket.socket,
        *,
        pod: str,
        slot: int,
        emulate: bool,
        store_key: str,
        **_: object,
    ) -> None:
        begin()
        Rank(Channel(connection), pod, slot, services(emulate=emulate, store_key=store_key)).run()

    return main


flip_in_flight = _main(FlipInFlight)
flip_after_vote = _main(FlipAfterVote)
wrong_weight = _main(WrongWeight)
pausing = _main(Pausing)
staged = _main(Staged)
connecting = _main(Connecting)
counting = _main(CountingOldTensors)
slow = _main(Slow)
