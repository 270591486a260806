"""bf16 and fp16 in the engine: every holder of a piece has the same bits after every step, and fp16
skips everywhere or nowhere."""

from __future__ import annotations

import hashlib
import math
import tempfile
from functools import partial
from pathlib import Path

import pytest

from planner.model.shape import ModelShape
from planner.plans.ranks import RankMap
from planner.plans.regions import common_refinement
from tests.unit.worker.changes import plan
from tests.unit.worker.ranks import engine_loaded, run_ranks
from worker.contract import TrainingSpec
from worker.training_settings import LossScale

pytestmark = pytest.mark.slow  # imports DeepSpeed
MODEL = ModelShape(name="bytes", layers=2, hidden=16, heads=4, kv_heads=2, ffn=32, vocab=256)
PLAN = plan("2x1+1x1", "1x2")
STEPS, POISONED = 8, 5
PRECISIONS = ("fp32", "bf16", "fp16")


def claims(rank, store):
    """What one of four ranks finds, precision by precision."""
    with engine_loaded(), tempfile.TemporaryDirectory() as folder:
        from worker.data.making.prepare import prepare

        prepare([Path(__file__)], Path(folder) / "text")
        return {
            precision: _train(rank, store, epoch, precision, f"{folder}/text")
            for epoch, precision in enumerate(PRECISIONS, start=1)
        }


def _train(rank, store, epoch, precision, data):
    from planner.model.arithmetic import INITIAL_DEVIATION
    from planner.model.tensors import layer_tensors
    from planner.plans.pieces import held_pieces, shard
    from tests.unit.worker.stages import stage_build
    from worker.checkpoint.start_source import FirstWeights
    from worker.control.activity import Activity
    from worker.data.dataset import Dataset
    from worker.device.device import CPU
    from worker.engine.deepspeed import DeepSpeedEngine
    from worker.engine.seam import Progress
    from worker.model.boxes import view
    from worker.model.initial_weights import initial_rows
    from worker.state.shards import TargetShards
    from worker.world.pace import RealPace
    from worker.world.world import World, rank_sets

    seat, activity = RankMap.of(PLAN).seats[rank], Activity()
    spec = TrainingSpec(
        model=MODEL.name,
        data=data,
        global_batch=2,
        sequence_length=16,
        steps=STEPS,
        warmup_steps=0,
        weight_decay=0.1,
        precision=precision,
        loss_scale=LossScale(initial=256, window=2) if precision == "fp16" else None,
        on_non_finite="Skip",
    )
    world = World(store, epoch, rank, 4, rank_sets(MODEL, PLAN), activity, device=CPU)
    target = TargetShards.first(
        MODEL,
        seat,
        FirstWeights(partial(initial_rows, 1, INITIAL_DEVIATION)).fill,
        activity,
        precision,
    )
    build = stage_build(MODEL, spec, PLAN, seat, world, target, activity)
    engine = DeepSpeedEngine(build, Dataset(spec.data, 16, MODEL.vocab), RealPace())
    engine.progress = Progress.of_start(spec)

    def bits():
        found = {}
        for layer in seat.layers:
            for tensor in layer_tensors(MODEL, layer):
                parts = (*target.shards[tensor.name], target.buffers.weights[tensor.name])
                for piece in held_pieces(tensor, seat, common_refinement([PLAN])):
                    hasher = hashlib.blake2b(digest_size=8)
                    for part in view(tensor, shard(tensor, seat), parts, piece):
                        hasher.update(part.float().contiguous().numpy().tobytes())
                    found[repr(tuple(piece))] = hasher.hexdigest()
        return found

    rows = []
    for step in range(STEPS):
        if step == POISONED and rank == 1:  # one rank's part of the sum has no end
            hook = next(iter(engine._pipeline.module.parameters()))
            handle = hook.register_hook(lambda gradient: gradient * math.inf)
        result = engine.train_step(None)
        if step == POISONED and rank == 1:
            handle.remove()
        row = {"loss": result.loss, "norm": repr(result.gradient_norm)}
        rows.append(row | {"bits": bits(), "at": engine.progress.agreed})
    kinds = sorted({str(weight.dtype) for weight in engine._pipeline.module.parameters()})
    engine.release()
    world.leave(wait=True)
    return {"steps": rows, "kinds": kinds}


@pytest.fixture(scope="module")
def found():
    return run_ranks("tests.distributed.exact.test_equal_copies:claims", 4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_all_holders_of_a_piece_have_the_same_bits_after_every_step(found, precision):
    """Of master, moments and of what is multiplied."""
    compared = 0
    for step in range(STEPS):
        rows = [rank[precision]["steps"][step] for rank in found]
        assert len({(row["norm"], row["loss"], *row["at"]) for row in rows}) == 1
        for piece in {piece for row in rows for piece in row["bits"]}:
            held = [row["bits"][piece] for row in rows if piece in row["bits"]]
            assert len(held) >= 2
            assert len(set(held)) == 1
            compared += len(held)
    assert compared > 100


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_multiplied_has_the_precision(found, precision):
    wanted = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}
    assert {kind for rank in found for kind in rank[precision]["kinds"]} == {wanted[precision]}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_overflow_in_one_rank_skips_the_update_in_all(found, precision):
    for rank in found:
        before, after, later = rank[precision]["steps"][POISONED - 1 : POISONED + 2]
        assert after["norm"] == "inf"
        assert after["bits"] == before["bits"]
        assert after["at"][:2] == [POISONED + 1, POISONED]
        assert later["bits"] != after["bits"]


def test_the_loss_scale_doubles_after_a_window_and_halves_at_an_overflow(found):
    """Steps 0 to 4 are finite, step 5 is not, and the window is 2."""
    at = [row["at"][2:] for row in found[0]["fp16"]["steps"]]
    assert at == [[256, 1], [512, 0], [512, 1], [1024, 0], [1024, 1], [512, 0], [512, 1], [1024, 0]]
    assert {row["at"][2] for row in found[0]["bf16"]["steps"]} == {1}


@pytest.mark.parametrize(("precision", "near"), [("bf16", 0.02), ("fp16", 0.005)])
def test_low_precision_trains_as_fp32_does(found, precision, near):
    for low, wide in zip(found[0][precision]["steps"], found[0]["fp32"]["steps"], strict=True):
        assert low["loss"] == pytest.approx(wide["loss"], abs=near)
