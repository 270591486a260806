"""A rank entry whose data disk stalls while the file that `HEDDLE_TEST_STALL` names is there."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from worker.engine.seam import Engine, StageBuild
from worker.rank import process


class Stalling(process.GlooServices):
    """Reads no sample while the disk stalls."""

    def build_engine(self, build: StageBuild) -> Engine:
        engine, stall = super().build_engine(build), Path(os.environ["HEDDLE_TEST_STALL"])
        dataset = engine._feed._dataset  # type: ignore[attr-defined] # of the engine alone
        read = type(dataset).sample.__get__(dataset)

        def sample(seed: int, sample_id: int) -> Any:
            while stall.exists():
                time.sleep(0.05)
            return read(seed, sample_id)

        dataset.sample = sample
        return engine


def main(connection: socket.socket, **arguments: Any) -> None:
    """Run one rank."""
    process.main(connection, **arguments, services_of=Stalling)
