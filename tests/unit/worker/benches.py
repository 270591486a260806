"""One rank's tensors, and engines on them, in a process that imports DeepSpeed itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from planner.model.arithmetic import INITIAL_DEVIATION
from planner.model.shape import ModelShape
from tests.unit.worker.changes import plan
from worker.contract import TrainingSpec

MODEL = ModelShape(name="bytes", layers=1, hidden=16, heads=4, kv_heads=2, ffn=32, vocab=256)


class Told:
    """Hears of updates, as readers of the state do.

    Attributes:
        old: {tensor: its numbers when it was told that they change}.
        boundary_at: (step, how many parts of tensors had changed by then) of the newest boundary.
    """

    def __init__(self, bench):
        self._bench = bench
        self.old, self.boundary_at = {}, None

    def before_update(self, tensor):
        self.old[tensor] = [part.clone() for part in self._bench.shards[tensor]]

    def boundary(self, progress):
        self.boundary_at = [progress.step, self._bench.changed(self.old) if self.old else 0]


class Bench:
    """One rank's tensors, and engines that are built on them."""

    def __init__(self, store, folder, epoch=1):
        import torch

        from planner.plans.ranks import RankMap
        from worker.checkpoint.start_source import FirstWeights
        from worker.control.activity import Activity
        from worker.data.dataset import Dataset
        from worker.data.making.prepare import prepare
        from worker.device.device import CPU
        from worker.model.initial_weights import initial_rows
        from worker.state.shards import TargetShards
        from worker.world.world import World, rank_sets

        torch.set_num_threads(1)
        self.plan, self.activity = plan("1x1"), Activity()
        (self.seat,) = RankMap.of(self.plan).seats
        prepare([Path(__file__)], folder / "text")
        self.spec = TrainingSpec(
            model=MODEL.name,
            data=str(folder / "text"),
            global_batch=1,
            sequence_length=16,
            steps=4,
            warmup_steps=2,
        )
        self.dataset = Dataset(self.spec.data, self.spec.sequence_length, MODEL.vocab)
        self.world = World(
            store, epoch, 0, 1, rank_sets(MODEL, self.plan), self.activity, device=CPU
        )
        self.target = TargetShards.first(
            MODEL,
            self.seat,
            FirstWeights(partial(initial_rows, self.spec.seed, INITIAL_DEVIATION)).fill,
            self.activity,
        )
        self.shards = self.target.shards
        self.told = Told(self)

    def stage(self, **changes):
        from tests.unit.worker.stages import stage_build

        spec = self.spec.model_copy(update=changes)
        target = self.target
        return stage_build(
            MODEL, spec, self.plan, self.seat, self.world, target, self.activity, self.told
        )

    def build(self, **changes):
        from worker.engine.deepspeed import DeepSpeedEngine
        from worker.world.pace import RealPace

        return DeepSpeedEngine(self.stage(**changes), self.dataset, RealPace())

    def copies(self):
        return {name: [part.clone() for part in parts] for name, parts in self.shards.items()}

    def changed(self, before):
        """How many parts of tensors differ."""
        return sum(
            not part.equal(was)
            for name, parts in self.shards.items()
            for part, was in zip(parts, before[name], strict=True)
        )
