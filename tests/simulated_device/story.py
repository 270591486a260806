"""One rank's life on a device, by the worker's own code; all ranks are processes of a test.

    epoch 1   two pipeline stages, one recomputed whole and one its attention; documents are masked;
              an evaluation, and a checkpoint
    epoch 2   prepared in a thread while epoch 1 trains, then one stage of TP 2
    epoch 3   prepared likewise, then two replicas; rank 1 is killed in a step
    epoch 4   rank 0 alone goes on from what it holds, and writes the final weights
    epoch 5   rank 0 starts anew from the checkpoint
A mixture spreads its experts over two replicas in epoch 1, with three micro-batches and with one,
and over the slots of a TP group in epoch 2.
Each change moves the state with `verify: Full`.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from planner.plans.plan import PlacedStage, Plan
from planner.plans.ranks import RankMap
from tests.families import ALL, MIXTURES
from tests.simulated_device import recorded_wire
from tests.simulated_device.device import device_numbers
from tests.simulated_device.rules import RULES
from tests.simulated_device.services import StoryServices, Way
from tests.simulated_device.tensors import SIM
from tests.unit.worker.changes import plan
from worker.checkpoint.load import Newest, newest
from worker.checkpoint.manifest import digest_of
from worker.checkpoint.saver import Saver
from worker.checkpoint.vaults.folder_vault import FolderVault
from worker.contract import Directive, Member, Restore, Resume, TrainingSpec
from worker.engine.deepspeed import begin
from worker.rank.preparation import Preparation, Prepared, Successor
from worker.rank.rank_state import RankState, layout_of
from worker.rank.saves import Saves
from worker.rank.switch import Switch
from worker.training_settings import Checkpointing, Corpus, DataSpec
from worker.weights.final_weights import own_files
from worker.world.pace import RealPace

SAMPLES, LENGTH = 4, 16
LIMIT_S = 120.0
Say = Callable[[str, Any], None]


class SimulatedAccelerator(CPU_Accelerator):
    """DeepSpeed's idea of the device."""

    def device_name(self, device_index=None):
        return "sim:0"

    current_device_name = device_name

    def device(self, device_index=None):
        return SIM


class Killed(RealPace):
    """A rank that is killed in its second backward pass."""

    def __init__(self, last_words: Callable[[], None]) -> None:
        self._last_words, self._passes = last_words, 0

    def backward(self) -> None:
        self._passes += 1
        if self._passes == 2:
            self._last_words()
            os.kill(os.getpid(), signal.SIGKILL)


def many(trained: Plan, recompute: tuple[str, ...] = ()) -> Plan:
    """A plan whose replicas train all samples between them, one a micro-batch."""
    count = SAMPLES // len(trained.templates)
    templates = []
    for one in trained.templates:
        how = recompute or ("none",) * len(one.stages)
        stages = tuple(replace(s, recompute=r) for s, r in zip(one.stages, how, strict=True))
        templates.append(replace(one, stages=stages, micro_batches=(count,)))
    return Plan(tuple(templates), trained.placement)


def replicas(stage: str, count: int) -> Plan:
    """Replicas of one stage, each on a GPU of its own."""
    (one,) = plan(stage).templates
    spots = tuple(PlacedStage(0, replica, 0, "a", (replica,)) for replica in range(count))
    return Plan((replace(one, micro_batches=(1,) * count),), spots)


PLANS = {
    1: many(plan("1x2+1x2"), ("full", "selective")),
    2: many(plan("2x4")),
    3: many(plan("1x4", "1x4")),
    4: many(plan("1x4")),
    5: many(plan("1x4")),
}


def spread(trained: Plan, *counts: int) -> Plan:
    """The same with whole experts on the GPUs of its stage, and these micro-batches."""
    (one,) = trained.templates
    stages = (replace(one.stages[0], ep=2, etp=1, recompute="full"),)
    return Plan((replace(one, stages=stages, micro_batches=counts),), trained.placement)


SPREAD = {
    **PLANS,
    1: spread(replicas("1x4", 2), 3, 1).with_zero(1),
    2: spread(plan("2x4"), SAMPLES),
}


def plans_of(family: str) -> dict[int, Plan]:
    """{epoch: its plan}."""
    return SPREAD if family in MIXTURES else PLANS


def spec_of(family: str, data: str, folder: Path) -> TrainingSpec:
    """The job."""
    model = ALL[family]
    return TrainingSpec(
        model=model.name,
        shape=model.to_json(),
        global_batch=SAMPLES,
        sequence_length=LENGTH,
        steps=20,
        data=DataSpec(blend=(Corpus(path=data),), document_mask=True, split=(8, 2, 0)),
        warmup_steps=0,
        evaluate_every=7,  # none falls on a step that is saved
        evaluate_samples=6,
        verify="Full",
        precision="bf16" if family.startswith("qwen") else "fp32",
        checkpoint=Checkpointing(path=str(folder / "saves"), every_steps=2),
    )


def directive_of(epoch: int, spec: TrainingSpec, ranks: int, holds: int | None) -> Directive:
    """Of the plan of an epoch, for the ranks that are left."""
    plans = plans_of(spec.model)
    spots = {(seat.node, seat.gpu): seat.rank for seat in RankMap.of(plans[epoch]).seats}
    members = tuple(
        Member(pod="a", slot=gpu, node="a", gpu=gpu, rank=spots.get(("a", gpu)), holds=holds)
        for gpu in range(ranks)
    )
    return Directive(
        job="tiny",
        epoch=epoch,
        phase="prepare",
        reason="start" if holds is None else "join",
        plan=plans[epoch].to_json(),
        plan_digest=plans[epoch].digest,
        layouts={} if holds is None else {holds: plans[holds].to_json()},
        members=members,
        store="127.0.0.1:1",
        training=spec,
    )


class Actor:
    """One rank."""

    def __init__(self, family: str, way: Way, rank: int, store: Any, say: Say) -> None:
        self.rank, self.model, self.say = rank, ALL[family], say
        self.services = StoryServices(way, rank)
        self.services.store = store
        self.state, self.saves = RankState(), Saves()
        self.savers: list[Saver] = []
        self.world: Any = None
        self.after: Preparation | None = None

    def prepare(self, directive: Directive) -> Preparation:
        held = self.state.holdings(self.model)
        still = self.state.still
        return Preparation(self.model, directive, "a", self.rank, held, self.services, still)

    def take(self, preparation: Preparation) -> Prepared:
        assert preparation.wait(LIMIT_S), "the preparation does not end"
        if preparation.error is not None:
            raise preparation.error
        found = preparation.take()
        assert found is not None
        return found

    def switch(self, preparation: Preparation) -> Successor:
        prepared = self.take(preparation)
        state = self.state
        progress = state.progress if state.layout else None
        one = Switch(model=self.model, prepared=prepared, services=self.services, progress=progress)
        held = state.holdings(self.model)
        assert one.run(held, lambda: False, lambda: None) == "commit"
        successor = prepared.successor
        assert successor is not None
        old_world = self.world
        old = state.commit(layout_of(prepared), successor.engine, one.agreed)
        self.world = successor.world
        if old is not None:
            old.release()
        if old_world is not None:
            old_world.leave()
        self.say("digest", one.complete(successor.world))
        prepared.transport.close()
        self.saves.begin(prepared.move, successor.saver)
        self.savers += [successor.saver] if successor.saver is not None else []
        return successor

    def train(self, spec: TrainingSpec, *, is_alone: bool = True) -> None:
        """A step; `is_alone` if no thread prepares beside it."""
        engine = self.state.engine
        assert engine is not None
        before = RULES.count("read"), RULES.count("copy")
        result = engine.train_step(self.saves.ready())
        if is_alone:
            self.say("budget", [RULES.count("read") - before[0], RULES.count("copy") - before[1]])
        self.say("loss", result.loss)
        self.say("norm", repr(result.gradient_norm))
        self.saves.at_boundary(spec, engine.progress, self.state.layout, result.agreed_epoch)

    def evaluate(self) -> None:
        assert self.state.engine is not None
        self.say("evaluation", self.state.engine.evaluate().loss)

    def bits(self) -> None:
        """Say a digest of everything that is held."""
        hasher, layout = hashlib.blake2b(digest_size=8), self.state.layout
        assert layout is not None
        for name in sorted(layout.shards):
            for part in layout.shards[name]:
                hasher.update(device_numbers(part).contiguous().numpy().tobytes())
        self.say("bits", hasher.hexdigest())

    def finish_saves(self) -> None:
        for saver in self.savers:
            assert saver.wait(LIMIT_S), "a save does not end"
        for record in self.saves.take_records():
            self.say("save", (record.step, record.outcome, record.error))


def begun(family: str, way: Way, rank: int, store: Any, say: Say) -> Actor:
    """A rank on its device, before its first epoch."""
    if way in ("cuda", "nccl"):
        from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

        set_accelerator(CUDA_Accelerator())
    elif way != "cpu":
        set_accelerator(SimulatedAccelerator())
    torch.backends.cuda.enable_flash_sdp(False)  # the simulated device has the plain kernel alone
    begin()
    return Actor(family, way, rank, store, say)


def play(family: str, way: Way, rank: int, store: Any, say: Say, data: str, folder: Path) -> None:
    """The life of one rank; `say` is heard even of a process that is killed."""
    spec, actor = spec_of(family, data, folder), begun(family, way, rank, store, say)
    actor.switch(actor.prepare(directive_of(1, spec, 2, None)))
    actor.evaluate()
    for epoch in (2, 3):
        actor.train(spec)
        following = actor.prepare(directive_of(epoch, spec, 2, epoch - 1))
        actor.train(spec, is_alone=False)  # while the next epoch is prepared
        actor.finish_saves()
        actor.switch(following)
        actor.bits()
    actor.train(spec)
    say("log", recorded_wire.LOG)
    say("warmed", actor.services.phases.count("warm"))
    _lose_rank_1(actor, spec)
    _go_on_alone(actor, spec, folder)


def _lose_rank_1(actor: Actor, spec: TrainingSpec) -> None:
    engine, world = actor.state.engine, actor.world
    assert engine is not None
    if actor.rank == 1:
        engine.pace = Killed(lambda: actor.say("end", [[*k, n] for k, n in RULES.seen.items()]))
        engine.train_step(None)
    try:
        engine.train_step(None)
        actor.say("lost", "nothing was noticed")
    except (ConnectionError, RuntimeError) as error:
        actor.say("lost", [engine.progress.step, engine.progress.gradients_step, bool(str(error))])
    world.break_()
    world.leave()
    actor.world = None


def _go_on_alone(actor: Actor, spec: TrainingSpec, folder: Path) -> None:
    step = actor.state.progress.step
    assert actor.state.catch_up(Resume(step=step)) is None
    directive = directive_of(4, spec, 1, 3)
    directive = directive.model_copy(update={"reason": "loss", "resume": Resume(step=step)})
    actor.switch(actor.prepare(directive))
    actor.train(spec)
    actor.evaluate()
    actor.bits()
    actor.finish_saves()
    layout = actor.state.layout
    assert layout is not None
    weights = {name: parts[0] for name, parts in layout.shards.items()}
    files = own_files(actor.model, layout.seats, layout.seat, weights, {}, actor.world) or ()
    actor.say("files", [file.digest.hex() for file in files if file.digest])
    found = newest(FolderVault(folder / "saves"))
    assert isinstance(found, Newest), found
    actor.say("saved", found.attempt.step)
    digest = digest_of(FolderVault(folder / "saves").read(found.attempt.manifest))
    restore = Restore(
        path=str(folder / "saves"),
        epoch=found.attempt.epoch,
        step=found.attempt.step,
        manifest=digest,
    )
    again = directive_of(5, spec, 1, None).model_copy(update={"restore": restore})
    fresh = Actor(actor.model.name, actor.services._way, 0, actor.services.store, actor.say)
    fresh.switch(fresh.prepare(again))
    fresh.bits()
    fresh.train(spec)
    actor.say("threads", sorted({thread.name for thread in threading.enumerate()}))
    actor.say("end", [[*key, times] for key, times in RULES.seen.items()])
