"""A rank entry that errs where a file tells it to: the real process, with one step or build spoilt.

`HEDDLE_TEST_ERRORS` is a folder; a file in it named by a GPU holds the name of the error, which
comes whenever a rank on that GPU begins its fourth step; one named `<node>.<GPU>.build`, when it
builds an engine, and then holds the monotonic time of that instead.  One named `<node>.<GPU>.room`
leaves that rank no memory for a change, and then holds the time as well; one named
`<node>.<GPU>.slow` holds how many times as long its emulated device takes.
"""

from __future__ import annotations

import functools
import os
import resource
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from migration.gloo_transport import GlooTransport
from migration.transport import Transport
from tests.simulated_device.silent_device import SilentDevice
from worker.control.store_client import PATIENCE_S
from worker.engine.deepspeed import DeepSpeedEngine
from worker.engine.seam import Engine, StageBuild, StepResult
from worker.rank import process
from worker.rank.move import Move
from worker.world.pace import EmulatedPace

STEP = 3
MANY_EPOCHS = 1000
ROOM_BYTES = 16 << 20
BREAK_S = 0.2  # for a device to answer after the break


def run_out_of_memory() -> None:
    """Take more memory than this process may have, so that torch's own allocator refuses."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + ROOM_BYTES
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        torch.empty(2 * ROOM_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def run_in_a_circle() -> None:
    """Never come back, and wait for nobody."""
    while True:
        time.sleep(0.01)


def raise_once() -> None:
    """An error of the user's own code."""
    raise ZeroDivisionError("division by zero")


def slow_down(pace: EmulatedPace, factor: float) -> None:
    """Let the device take so many times as long to compute."""
    times = pace._times
    longer = {"forward_s": factor * times.forward_s, "backward_s": factor * times.backward_s}
    pace._times = replace(times, **longer)


class Erring(process.GlooServices):
    """Spoils a step of an engine, or its making, or its device, or leaves no room for it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.device = SilentDevice(self.device, BREAK_S)  # type: ignore[assignment]

    def form_transport(self, store: Any, prefix: str, rank: int, size: int) -> Transport:
        waiting = functools.partial(self.activity.wait, may_be_left=True)
        return GlooTransport.form(store, prefix, rank, size, PATIENCE_S, waiting)

    def free_bytes(self, move: Move) -> int:
        folder, here = Path(os.environ["HEDDLE_TEST_ERRORS"]), move.member
        order = folder / f"{here.node}.{here.gpu}.room"
        if not order.exists():
            return super().free_bytes(move)
        order.write_text(str(time.monotonic()))
        return 0

    def build_engine(self, build: StageBuild) -> Engine:
        order = Path(os.environ["HEDDLE_TEST_ERRORS"]) / str(build.seat.gpu)
        spoil = order.with_name(f"{build.seat.node}.{build.seat.gpu}.build")
        if spoil.exists():
            error = spoil.read_text()
            spoil.write_text(str(time.monotonic()))
            globals()[error]()
        engine = super().build_engine(build)
        assert isinstance(engine, DeepSpeedEngine)
        slow = order.with_name(f"{build.seat.node}.{build.seat.gpu}.slow")
        if slow.exists():
            assert isinstance(engine.pace, EmulatedPace)
            slow_down(engine.pace, float(slow.read_text()))
        train_step = engine.train_step

        def spoilt(ready_epoch: int | None) -> StepResult:
            if engine.progress.step != STEP or not order.exists():
                return train_step(ready_epoch)
            if (name := order.read_text()) == "ready":  # for a change that nobody has prepared
                return train_step(MANY_EPOCHS)
            if name == "fall_silent":
                self.device.fall_silent()
                return train_step(ready_epoch)
            globals()[name]()
            raise AssertionError(f"{name} came back")

        engine.train_step = spoilt  # type: ignore[method-assign]
        return engine


def main(connection: socket.socket, **arguments: Any) -> None:
    """Run a rank whose engine errs as it is told."""
    process.main(connection, services_of=Erring, **arguments)
