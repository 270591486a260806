"""What a rank allocates is what the planner counts: to the byte, activations to 5 %.

Three stages of tiny-llama; each rank counts its own tensors by their storages after a step, and
what autograd keeps by its hooks during one.
"""

from __future__ import annotations

import gc
import tempfile
from collections import Counter
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from planner.cost.memory import StageSlot, stage_memory
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap
from planner.profiles.entries import LayerCost
from tests.builders import MODEL, demo_profile, work_on
from tests.unit.worker.ranks import engine_loaded, run_ranks
from worker.contract import TrainingSpec
from worker.device.device import CPU

pytestmark = [pytest.mark.slow, pytest.mark.system]  # imports DeepSpeed
DEPTH, MICRO_BATCH, MICRO_BATCHES, LENGTH = 3, 2, 3, 64
BATCH = MICRO_BATCH * MICRO_BATCHES
CASES = tuple(product(("fp32", "bf16", "fp16"), ("none", "selective", "full")))
NEAR = 0.05  # of the activations


def plan_of(recompute: str) -> Plan:
    stage = Stage(gpu_type="demo-fast", tp=1, layers=2, recompute=recompute)
    template = FilledTemplate((stage,) * DEPTH, MICRO_BATCH, (MICRO_BATCHES,))
    return Plan((template,), tuple(PlacedStage(0, 0, s, "a", (s,)) for s in range(DEPTH)))


class Kept:
    """Bytes of all storages that autograd keeps, and the most of them at any time."""

    def __init__(self, apart):
        self.apart, self.counts, self.bytes, self.most = apart, Counter(), 0, 0

    def pack(self, tensor):
        return _Held(self, tensor)

    def change(self, storage, by):
        place = storage.data_ptr()
        if place in self.apart:
            return
        before, self.counts[place] = self.counts[place], self.counts[place] + by
        if not before or not self.counts[place]:
            self.bytes += by * storage.nbytes()
            self.most = max(self.most, self.bytes)


class _Held:
    """A tensor that is kept until this is dropped."""

    def __init__(self, kept, tensor):
        self.kept, self.tensor = kept, tensor
        kept.change(tensor.untyped_storage(), 1)

    def __del__(self):
        self.kept.change(self.tensor.untyped_storage(), -1)


def storages(tensors):
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def living():
    """All tensors of the process that Python knows."""
    gc.collect()
    import torch

    found = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    return [one for one in found if not one.is_meta]


def claims(rank, store):
    with engine_loaded(), tempfile.TemporaryDirectory() as folder:
        from worker.data.making.prepare import prepare

        prepare([Path(__file__)], Path(folder) / "text")
        return [
            _count(rank, store, epoch, case, f"{folder}/text")
            for epoch, case in enumerate(CASES, start=1)
        ]


def _count(rank, store, epoch, case, data):
    import torch

    from planner.model.arithmetic import INITIAL_DEVIATION
    from tests.unit.worker.stages import stage_build
    from worker.checkpoint.start_source import FirstWeights
    from worker.control.activity import Activity
    from worker.data.dataset import Dataset
    from worker.engine.deepspeed import DeepSpeedEngine
    from worker.engine.seam import Progress
    from worker.model.initial_weights import initial_rows
    from worker.profile.bench import Bench
    from worker.profile.layers import measure_layer
    from worker.profile.rows import Part
    from worker.state.shards import TargetShards
    from worker.world.pace import RealPace
    from worker.world.world import World, rank_sets

    precision, recompute = case
    plan, activity = plan_of(recompute), Activity()
    seat = RankMap.of(plan).seats[rank]
    spec = TrainingSpec(
        model=MODEL.name, data=data, global_batch=BATCH, sequence_length=LENGTH, steps=9,
        precision=precision,
    )  # fmt: skip
    dataset = Dataset(spec.data, LENGTH, MODEL.vocab)
    bench = Bench(CPU, 1)
    costs = {
        kind: measure_layer(
            bench, MODEL, Part(kind), 1, MICRO_BATCH, LENGTH, precision, lambda _: 0.0
        )
        for kind in ("embedding", "block", "head")
    } if rank == 0 else {}  # fmt: skip
    others = storages(living())
    world = World(store, epoch, rank, DEPTH, rank_sets(MODEL, plan), activity, device=CPU)
    target = TargetShards.first(
        MODEL,
        seat,
        FirstWeights(partial(initial_rows, 1, INITIAL_DEVIATION)).fill,
        activity,
        precision,
    )
    build = stage_build(MODEL, spec, plan, seat, world, target, activity)
    engine = DeepSpeedEngine(build, dataset, RealPace())
    engine.progress = Progress.of_start(spec)
    engine.train_step(None)
    weights = storages(engine._pipeline.module.parameters())
    kept = Kept(weights)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda held: held.tensor):
        engine.train_step(None)
    found = {
        "weights": weights,
        "gradients": storages(target.buffers.gradients.values()),
        "optimizer": storages(part for parts in target.shards.values() for part in parts),
        "communication": storages(
            buffer
            for buffer in (
                engine._sync.bucket.memory,
                engine._pipeline.pipe_recv_buf,
                engine._pipeline.grad_layer,
            )
            if buffer is not None
        ),
    }
    for place in weights:  # of fp32 the weights are their own masters
        found["optimizer"].pop(place, None)
    known = {place for held in found.values() for place in held} | set(others)
    rest = {place: size for place, size in storages(living()).items() if place not in known}
    answer = {name: sum(held.values()) for name, held in found.items()}
    answer |= {"activations": kept.most, "left": kept.bytes, "rest": sum(rest.values())}
    engine.release()
    world.leave(wait=True)
    answer["costs"] = {kind: asdict(c) for kind, c in costs.items()}
    return answer


@pytest.fixture(scope="module")
def found():
    return run_ranks("tests.distributed.memory.test_memory:claims", DEPTH)


def counted(found, case, stage):
    """(what the planner counts, what the rank of that stage has found)."""
    precision, recompute = case
    index = CASES.index(case)
    costs = {kind: LayerCost(**row) for kind, row in found[0][index]["costs"].items()}
    layers = {(kind, "demo-fast", 1, MICRO_BATCH): cost for kind, cost in costs.items()}
    profile = replace(demo_profile(), precision=precision, layers=layers)
    asked = work_on(MODEL, BATCH, LENGTH, precision=precision, recompute=recompute, memory="worker")
    slot = StageSlot(
        gpu_type="demo-fast",
        tp=1,
        micro_batch=MICRO_BATCH,
        micro_batches=MICRO_BATCHES,
        depth=DEPTH,
        index=stage,
        recompute=recompute,
    )
    return stage_memory(asked, profile, slot, 2), found[stage][index]


@pytest.mark.parametrize("case", CASES, ids="-".join)
@pytest.mark.parametrize("stage", range(DEPTH))
def test_state_and_buffers_are_what_the_planner_counts(found, case, stage):
    memory, real = counted(found, case, stage)
    for term in ("weights", "gradients", "optimizer", "communication"):
        assert real[term] == getattr(memory, term), term


@pytest.mark.parametrize("case", CASES, ids="-".join)
@pytest.mark.parametrize("stage", range(DEPTH))
def test_activations_are_what_the_planner_counts(found, case, stage):
    memory, real = counted(found, case, stage)
    assert real["activations"] == pytest.approx(memory.activations, rel=NEAR)
    assert real["left"] == 0


@pytest.mark.parametrize("case", CASES, ids="-".join)
@pytest.mark.parametrize("stage", range(DEPTH))
def test_nothing_else_is_left_after_a_step(found, case, stage):
    """What the last micro-batch leaves is free for the optimizer step in the planner's count."""
    memory, real = counted(found, case, stage)
    assert real["rest"] <= memory.activations + memory.logits + memory.boundary
