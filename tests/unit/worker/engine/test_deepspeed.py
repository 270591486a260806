"""worker/engine/deepspeed.py: a DeepSpeed whose seams were not tried is refused by name."""

from __future__ import annotations

import math
import re
import tempfile
from pathlib import Path

import pytest

from tests.unit.worker.benches import MODEL, Bench
from tests.unit.worker.ranks import engine_loaded, run_ranks
from worker.errors import EngineFailed, NonFinite

pytestmark = pytest.mark.slow  # imports DeepSpeed


@pytest.fixture(scope="module")
def engine():
    from worker.engine import deepspeed as deepspeed_engine

    return deepspeed_engine


def test_the_locked_deepspeed_has_every_seam(engine):
    engine.check_deepspeed()


def test_another_version_is_refused_with_what_to_install(engine, monkeypatch):
    monkeypatch.setattr(engine.deepspeed, "__version__", "0.99.0+local")
    with pytest.raises(EngineFailed, match=r"0\.99\.0 was not tried .* install 0\.19\.8"):
        engine.check_deepspeed()


@pytest.mark.parametrize(
    ("owner", "name", "said"),
    [
        ("PipelineEngine", "_exec_reduce_grads", "PipelineEngine._exec_reduce_grads"),
        ("PipelineEngine", "_exec_optimizer_step", "PipelineEngine._exec_optimizer_step"),
        ("PipelineEngine", "_INSTRUCTION_MAP", "PipelineEngine._INSTRUCTION_MAP"),
        ("PipelineModule", "_partition_layers", "PipelineModule._partition_layers"),
        ("schedule", "OptimizerStep", "deepspeed.runtime.pipe.schedule.OptimizerStep"),
    ],
    ids=lambda value: value,
)
def test_a_seam_that_vanished_would_be_an_override_without_effect(
    engine, monkeypatch, owner, name, said
):
    monkeypatch.delattr(getattr(engine, owner), name)
    with pytest.raises(EngineFailed, match=rf"lacks {re.escape(said)}$"):
        engine.check_deepspeed()


def test_whatever_of_deepspeed_is_overridden_is_a_seam_that_is_checked(engine):
    for ours, theirs in (
        (engine._Pipeline, engine.PipelineEngine),
        (engine._Module, engine.PipelineModule),
    ):
        own = {name for name in vars(ours) if not name.startswith("__")}
        overridden = {name for name in own if hasattr(theirs, name)}
        assert overridden <= set(engine.SEAMS[theirs])
        assert overridden >= {name for name in own if name.startswith("_exec_")}


def test_every_instruction_that_is_overridden_is_in_the_map(engine):
    """DeepSpeed looks its functions up there, and so would call its own."""
    ours = {name: call for name, call in vars(engine._Pipeline).items() if name.startswith("_exec")}
    assert set(ours.values()) - set(engine._Pipeline._INSTRUCTION_MAP.values()) == set()


def claims(_rank, store):
    """What one rank finds, alone in its process."""
    with engine_loaded():
        return {
            "kernels": _kernels(store),
            "engine": _train(store),
            "fp16": _step_in_fp16(),
            "broken": _break_in_an_evaluation(store),
        }


def _kernels(store):
    """Parts of tensors that warming changes, and operations of a step's passes that it lacks."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from worker.engine.deepspeed import DeepSpeedEngine
    from worker.engine.warm_kernels import warm_kernels
    from worker.world.pace import RealPace

    class Operations(TorchDispatchMode):
        def __init__(self, *, is_on):
            super().__init__()
            self.seen, self.is_on = set(), is_on

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if self.is_on:
                self.seen.add(str(function))
            return function(*args, **(kwargs or {}))

    class Passes(RealPace):
        def backward(self):
            step.is_on = False

    class Begun(DeepSpeedEngine):
        def begin_pass(self):
            super().begin_pass()
            step.is_on = True

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(store, Path(folder), epoch=2)
        warm, step = Operations(is_on=True), Operations(is_on=False)
        before = bench.copies()
        with warm:
            warm_kernels(bench.stage())
        changed = bench.changed(before)
        engine = Begun(bench.stage(), bench.dataset, Passes())
        with step:
            engine.train_step(None)
    assert len(step.seen) > 10
    return [changed, sorted(step.seen - warm.seen)]


def _break_in_an_evaluation(store):
    """Forward passes until a rank that evaluates alone ends, and why, once its world is broken."""
    from worker.data.held_out import HeldOut
    from worker.engine.deepspeed import DeepSpeedEngine
    from worker.world.pace import RealPace

    class Breaks(RealPace):
        passes = 0

        def forward(self):
            self.passes += 1
            if self.passes == 2:
                bench.world.break_("told to halt")

    with tempfile.TemporaryDirectory() as folder:
        bench, pace = Bench(store, Path(folder), epoch=3), Breaks()
        held_out = HeldOut(bench.dataset, 6)
        engine = DeepSpeedEngine(bench.stage(), bench.dataset, pace, held_out)
        with pytest.raises(ConnectionError) as caught:
            engine.evaluate()
        engine.release()
    return [held_out.samples, pace.passes, str(caught.value)]


def _train(store):
    """One engine after the other on the same tensors."""
    from worker.control.connections import connections
    from worker.engine.reference.training import train

    with tempfile.TemporaryDirectory() as folder:
        bench, found = Bench(store, Path(folder)), {}
        before, open_before = bench.copies(), connections()
        first = bench.build()
        found["changed by building"] = bench.changed(before)
        begun = bench.activity.progress
        losses = [first.train_step(None).loss for _ in range(2)]
        found["advanced"] = bench.activity.progress - begun
        before = bench.copies()
        second = bench.build()  # while the first one is not done
        found["changed by building"] += bench.changed(before)
        losses.append(first.train_step(None).loss)
        second.progress = first.progress
        first.release()
        losses.append(second.train_step(None).loss)
        reference, weights = train(bench.spec, MODEL, 4)
        found["losses"], found["reference"] = losses, reference
        found["furthest"] = max(
            (bench.shards[name][0] - weights[name]).abs().max().item() for name in bench.shards
        )
        found["progress"] = [second.progress.step, second.progress.updates]
        before, told = bench.copies(), bench.told
        told.old.clear()
        found["agreed"] = second.train_step(7).agreed_epoch
        found["told in order"] = list(told.old) == list(bench.shards)
        found["told before"] = all(
            part.equal(was)
            for name, parts in told.old.items()
            for part, was in zip(parts, before[name], strict=True)
        )
        found["told whole"] = told.boundary_at == [second.progress.step, bench.changed(before)]
        timers = second._pipeline.timers.get_timers().values()
        found["kept times"] = sum(len(timer.event_timers) for timer in timers)
        before = bench.copies()
        second.release()
        found["changed by releasing"] = bench.changed(before)
        found["connections"] = len(connections() - open_before)
        return found | _meet_numbers_without_end(bench)


def _meet_numbers_without_end(bench):
    """An engine that is to stop, and one that is to skip, each at step 5."""
    found = {}
    spoilt = bench.shards["1.q"][0]
    spoilt[0, 0] = 0.0
    before = bench.copies()
    stopping = bench.build(on_non_finite="Stop")
    stopping.progress.step = stopping.progress.updates = 5
    spoilt[0, 0] = float("nan")
    try:
        stopping.train_step(None)
    except NonFinite as error:
        found["stopped"] = str(error)
    try:
        stopping.apply(1.0)
    except EngineFailed as error:
        found["no gradients"] = str(error)
    spoilt[0, 0] = 0.0
    found["changed by the stop"] = bench.changed(before)
    progress = stopping.progress
    found["after the stop"] = [progress.step, progress.updates, progress.result]
    stopping.release()

    skipping = bench.build(on_non_finite="Skip")
    skipping.progress.step = skipping.progress.updates = 5
    spoilt[0, 0] = float("nan")
    bench.told.old.clear()
    found["skipped"] = math.isnan(skipping.train_step(None).gradient_norm)
    spoilt[0, 0] = 0.0
    found["changed by the skip"] = bench.changed(before)
    found["told of the skip"] = [list(bench.told.old), bench.told.boundary_at]
    found["after the skip"] = [skipping.progress.step, skipping.progress.updates]
    found["next"] = math.isfinite(skipping.train_step(None).loss)
    found["after the next"] = [skipping.progress.step, skipping.progress.updates]
    skipping.release()
    return found


def _step_in_fp16():
    """Which groups have fp32 gradients while each is stepped, and the types of all weights."""
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator

    type(get_accelerator()).is_fp16_supported = lambda _: True  # on a CPU it says no, and computes
    blocks = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    adam = torch.optim.Adam([{"params": list(block.parameters())} for block in blocks])
    config = {
        "train_batch_size": 1,
        "fp16": {"enabled": True, "loss_scale": 1.0},
        "zero_optimization": {"stage": 1},
    }
    engine, optimizer, *_ = deepspeed.initialize(model=blocks, optimizer=adam, config=config)
    seen = []
    step = adam.step

    def watched():
        masters = optimizer.single_partition_of_fp32_groups
        seen.append([i for i, master in enumerate(masters) if master.grad is not None])
        step()

    adam.step = watched
    engine.backward(engine(torch.ones(1, 8, dtype=torch.half)).float().sum())
    engine.step()
    return {"seen": seen, "kinds": sorted({str(weight.dtype) for weight in blocks.parameters()})}


@pytest.fixture(scope="module")
def found():
    (answer,) = run_ranks("tests.unit.worker.engine.test_deepspeed:claims", 1)
    return answer


def test_fp16_gradients_become_fp32_one_group_of_parameters_at_a_time(found):
    """The planner's memory of fp16 rests on it."""
    assert found["fp16"] == {"seen": [[0], [1], [2], [3]], "kinds": ["torch.float16"]}


def test_engines_on_the_same_tensors_train_on_as_one(found):
    """The second is built while the first trains, and takes over with its progress."""
    engine = found["engine"]
    assert engine["losses"] == pytest.approx(engine["reference"], abs=1e-5)
    assert engine["furthest"] < 1e-5
    assert engine["progress"] == [4, 4]


def test_building_and_releasing_an_engine_changes_no_number_and_opens_no_connection(found):
    engine = found["engine"]
    assert (engine["changed by building"], engine["changed by releasing"]) == (0, 0)
    assert engine["connections"] == 0


def test_a_rank_that_evaluates_alone_ends_between_two_micro_batches_once_its_world_broke(found):
    assert found["broken"] == [6, 2, "told to halt"]


def test_each_micro_batch_is_progress(found):
    """Forward and backward of two steps, of one micro-batch each."""
    assert found["engine"]["advanced"] >= 4


def test_readers_are_told_before_each_tensor_changes_and_once_the_update_is_whole(found):
    engine = found["engine"]
    assert engine["told in order"]
    assert engine["told before"]
    assert engine["told whole"]
    assert engine["told of the skip"] == [[], [6, 0]]  # nothing changes


def test_no_timer_of_deepspeed_keeps_what_each_step_took(found):
    """On a GPU two events a step would be kept, as long as the job runs."""
    assert found["engine"]["kept times"] == 0


def test_one_rank_agrees_with_itself_on_a_switch(found):
    assert found["engine"]["agreed"] == 7


def test_numbers_without_end_stop_the_step_before_anything_is_applied(found):
    engine = found["engine"]
    assert engine["stopped"].startswith("step 5 has loss nan and gradient norm nan")
    assert engine["changed by the stop"] == 0
    assert engine["after the stop"] == [5, 5, None]


def test_nobody_rolls_forward_with_gradients_that_are_not_finite(found):
    assert found["engine"]["no gradients"] == "no reduced gradients of step 5 are held here"


def test_a_step_that_is_skipped_counts_as_a_step_and_not_as_an_update(found):
    engine = found["engine"]
    assert engine["skipped"]
    assert engine["changed by the skip"] == 0
    assert engine["after the skip"] == [6, 5]
    assert engine["next"]
    assert engine["after the next"] == [7, 6]


def test_a_warm_rank_has_run_every_operation_of_a_pass_and_changed_no_number(found):
    """Else a device loads kernels while the whole plan waits for the rank."""
    changed, missing = found["kernels"]
    assert (changed, missing) == (0, [])
