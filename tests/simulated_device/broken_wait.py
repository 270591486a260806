"""A world that breaks while the host waits for its step: on a right device, and on wrong ones."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path


def count_early(engine) -> None:
    """Take the sums as done when they are only queued."""
    sum_ = engine._sync.sum_

    def queued() -> None:
        sum_()
        engine.progress.gradients_step = engine.progress.step

    engine._sync.sum_ = queued


def claims(_rank, store):
    """{mutant: [whether the step failed, the step whose gradients it says to hold]}."""
    with contextlib.redirect_stdout(sys.stderr):  # where DeepSpeed's log goes
        from tests.unit.worker.benches import Bench
        from worker.device.device import CpuDevice
        from worker.engine.deepspeed import begin, warm_up
        from worker.world.world import World

        class AsksAfterTheWait(CpuDevice):
            """As `Device.host` is to: the world breaks in the wait, then the flag is asked."""

            def host(self, tensor, broken=None):
                if broken is None:
                    return tensor
                world.break_("rank 1 is gone")
                tensor = tensor.clone().fill_(0.25)  # garbage that looks like a number
                broken.check()
                return tensor

        class AsksBeforeTheWait(CpuDevice):
            def host(self, tensor, broken=None):
                if broken is None:
                    return tensor
                broken.check()
                world.break_("rank 1 is gone")
                return tensor.clone().fill_(0.25)

        class BreaksWithoutFlag(AsksAfterTheWait):
            def host(self, tensor, broken=None):
                return tensor if broken is None else tensor.clone().fill_(0.25)

        warm_up()
        os.environ["LOCAL_RANK"] = "0"
        begin()
        found = {}
        mutants = {
            "right": (AsksAfterTheWait(), lambda engine: None),
            "flag asked before the wait": (AsksBeforeTheWait(), lambda engine: None),
            "break without flag": (BreaksWithoutFlag(), lambda engine: None),
            "gradients_step early": (AsksAfterTheWait(), count_early),
        }
        for name, (device, change) in mutants.items():
            with tempfile.TemporaryDirectory() as folder:
                bench = Bench(store, Path(folder))
                bench.world = world = World(
                    store, len(found) + 2, 0, 1, ((0,),), bench.activity, device=device
                )
                engine, failed = bench.build(), False
                change(engine)
                try:
                    engine.train_step(None)
                except ConnectionError:
                    failed = True
                found[name] = [failed, engine.progress.gradients_step, engine.progress.step]
        return found
