"""The curve of one plain process, against which every job of these tests is held.

All jobs train with the same settings, so that one curve serves them all.  A process of its own
trains it, with what the cores have left while a cluster is waited for; it is trained further on
demand.  `python -m tests.e2e.kubernetes.reference FOLDER` is that process: for each line with a
count of steps it trains so many more, and answers with a line for each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import TracebackType

from heddle_operator.apis.data import TEXT_BYTES
from tests.e2e.kubernetes.job import TRAINING

STEPS_TO_COMPLETE = 40  # after so many the weights are kept
_AHEAD = 240  # steps that are trained before anybody asks
_CHUNK = 40
_WEIGHTS = "weights.safetensors"
_IDLE_ONLY = 19  # nice


class Reference:
    """The curve so far; it is its own context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._losses: list[float] = []
        self._asked = 0
        trainer = (sys.executable, "-m", "tests.e2e.kubernetes.reference", str(folder))
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *trainer],  # it dies with this program
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._ask(_AHEAD)

    def __enter__(self) -> Reference:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._process as process:
            process.kill()

    def losses(self, steps: int) -> list[float]:
        """Losses of the first steps."""
        assert self._process.stdout is not None
        while len(self._losses) < steps:
            if len(self._losses) == self._asked:
                self._ask(_CHUNK)
            self._losses.append(float(self._process.stdout.readline()))
        return self._losses[:steps]

    @property
    def weights(self) -> Path:
        """The weights after STEPS_TO_COMPLETE steps, as one safetensors file."""
        self.losses(STEPS_TO_COMPLETE)
        return self.folder / _WEIGHTS

    def _ask(self, steps: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._asked += steps


def main(folder: Path) -> None:
    """Train as many steps as each line of standard input says."""
    os.nice(_IDLE_ONLY)
    import torch
    from safetensors.torch import save_file

    from planner.model.catalogue import find_model
    from worker.contract import TrainingSpec
    from worker.data.making.prepare import prepare
    from worker.engine.reference.training import training

    torch.set_num_threads(1)  # the tensors are small: a second thread only spins
    prepare([Path(sysconfig.get_paths()["stdlib"])], folder / "text", TEXT_BYTES)
    spec = TrainingSpec(
        model="tiny-llama",
        data=str(folder / "text"),
        global_batch=int(TRAINING["globalBatch"]),
        sequence_length=int(TRAINING["sequenceLength"]),
        learning_rate=TRAINING["learningRate"],
        warmup_steps=int(TRAINING["warmupSteps"]),
        steps=1,
    )
    trained, steps = 0, training(spec, find_model(spec.model))
    for line in sys.stdin:
        for _ in range(int(line)):
            loss, weights = next(steps)
            trained += 1
            if trained == STEPS_TO_COMPLETE:
                save_file(weights, folder / _WEIGHTS)
            print(loss, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
