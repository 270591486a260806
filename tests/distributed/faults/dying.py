"""A rank entry that kills itself while rows of tokens are on their way to experts or back.

`HEDDLE_TEST_DEATHS` is a folder.  A file `<node>.<GPU>` in it holds the way at which the rank of
that GPU dies: one of `WAYS`, in the step `STEP`.
Invariant: the rank does what it always does until then; each way is told by its place in a block.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import torch

from worker.engine.deepspeed import DeepSpeedEngine
from worker.engine.seam import Engine, StageBuild, StepResult
from worker.rank import process
from worker.world.group import Group

WAYS = ("dispatch", "combine", "combine backward", "dispatch backward")
STEP = 3


class Dying(process.GlooServices):
    """Ends its process by SIGKILL between two messages of an exchange of rows."""

    def build_engine(self, build: StageBuild) -> Engine:
        engine = super().build_engine(build)
        assert isinstance(engine, DeepSpeedEngine)
        order = Path(os.environ["HEDDLE_TEST_DEATHS"]) / f"{build.seat.node}.{build.seat.gpu}"
        train_step = engine.train_step

        def dying(ready_epoch: int | None) -> StepResult:
            if engine.progress.step == STEP and order.exists():
                _die_at(order.read_text())
            return train_step(ready_epoch)

        engine.train_step = dying  # type: ignore[method-assign]
        return engine


def _die_at(way: str) -> None:
    """From now on this process ends where rows go that way."""
    send, counts = Group.all_to_all_, {"forward": 0, "backward": 0}

    def dying(group: Group, received: Any, sent: torch.Tensor, *rest: Any) -> None:
        if sent.is_floating_point():  # rows, not their numbers
            is_backward = torch._C._current_graph_task_id() != -1
            direction = "backward" if is_backward else "forward"
            found = WAYS[counts[direction] % 2 + 2 * is_backward]
            counts[direction] += 1
            if found == way:
                os.kill(os.getpid(), signal.SIGKILL)
        send(group, received, sent, *rest)

    Group.all_to_all_ = dying  # type: ignore[method-assign] # in this process, the rank's own


def main(connection: socket.socket, **arguments: Any) -> None:
    """Run a rank that dies as it is told."""
    process.main(connection, services_of=Dying, **arguments)
