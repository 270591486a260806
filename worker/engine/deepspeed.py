"""The seam with DeepSpeed: everything that is patched, subclassed or overridden, in one module.

DeepSpeed keeps what it does well: 1F1B schedule, pipeline buffers, forward and backward of
micro-batches.  It lives in a world of one: torch's default group has one member in every process.
Replaced: where layers are cut, who talks to whom, how gradients and losses of different pipelines
add up, and the update.  So building an engine communicates nothing and reads no numbers, and a
thread builds the next one on the tensors that the old one still trains.

Every override, and what breaks without it:
    PipelineParallelGrid (symbol)     a regular grid is hard-coded, pipe x data x model == world
    PipelineModule._partition_layers  a template could not be cut as its plan says
    pipe.module.dist.new_group        one more group, thread and descriptors for each plan, for ever
    pipe.module.print                 every process is rank 0, and prints its idea of the world
    pipe.engine.p2p (symbol)          one peer a stage, so no change of TP degree along a pipeline
    deepspeed.PipelineEngine (symbol) `initialize` looks the class up there
    _exec_reduce_grads                averages over ranks instead of weighting by samples
    _exec_reduce_tied_grads           does nothing without TiedLayerSpec; ours says so
    _broadcast_model                  sends each parameter to itself, also those of another engine
    _aggregate_total_loss             averages over replicas of one template
    _exec_optimizer_step              the update is ours (`engine.optimizer`)
    _exec_forward_pass, _exec_backward_pass
                                      pace, what the watchdog sees, samples of dropout masks
    _INSTRUCTION_MAP                  holds functions: no `_exec_` override would ever be called
    pipe_partitioned, grad_partitioned = false
                                      would slice activations by the *local* TP degree
    timers.throughput = false         is stopped only by DeepSpeed's own step
    timers                            two events of the device a step would be kept for ever
An optimizer that is never stepped stands in, because the backward pass asserts that there is one.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock  # a scoped patch of DeepSpeed's own symbols, not of our code

import deepspeed
import deepspeed.comm
import deepspeed.runtime.pipe.engine as pipe_engine
import deepspeed.runtime.pipe.module as pipe_module
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine

from planner.plans.ranks import Seat
from planner.plans.regions import common_refinement
from worker.control.host_memory import drop
from worker.data.dataset import Dataset
from worker.data.held_out import HeldOut
from worker.engine.accumulation import weighted
from worker.engine.expert_place import place_experts
from worker.engine.feed import Feed
from worker.engine.gradient_sync import GradientSync, norm_of, step_norm
from worker.engine.learning_rate import learning_rate
from worker.engine.optimizer import StageUpdate
from worker.engine.parameters import StageParameters, gradient_pieces
from worker.engine.seam import Evaluation, Progress, StageBuild, StepResult
from worker.engine.spread import Spread
from worker.engine.step_clock import StepClock, computing_s
from worker.engine.step_summary import RankSummary, decode, encode
from worker.errors import EngineFailed, NonFinite
from worker.model.forward_context import CurrentContext, ForwardContext
from worker.model.own import class_of, loss_of
from worker.model.parallel import TensorParallel
from worker.world.grid import Grid, Topology
from worker.world.pace import Pace
from worker.world.stage_links import LinksOfThread, StageLinks
from worker.world.world import join_world_of_one

TESTED_VERSIONS = ("0.19.8",)
SEAMS: dict[Any, tuple[str, ...]] = {
    PipelineEngine: (
        "_exec_reduce_grads",
        "_exec_reduce_tied_grads",
        "_exec_forward_pass",
        "_exec_backward_pass",
        "_exec_optimizer_step",
        "_aggregate_total_loss",
        "_broadcast_model",
        "_INSTRUCTION_MAP",
        "_scale_loss_by_gas",
    ),
    PipelineModule: ("_partition_layers", "_set_bounds", "mpu"),
    schedule: ("ReduceGrads", "ReduceTiedGrads", "ForwardPass", "BackwardPass", "OptimizerStep"),
    pipe_engine: ("p2p",),
    pipe_engine.p2p: ("send", "recv", "init_process_groups"),
    pipe_module: ("PipelineParallelGrid", "dist"),
    pipe_module.dist: ("new_group",),
    deepspeed: ("PipelineEngine",),
    deepspeed.utils.timer: ("NoopTimer",),
    deepspeed.comm.comm: ("cdb",),
}


def check_deepspeed() -> None:
    """Refuse a DeepSpeed whose seams were not tried.

    A name that vanished would make an override dead code, silently.

    Raises:
        EngineFailed: another version, or a name is missing.
    """
    version = deepspeed.__version__.split("+")[0]
    if version not in TESTED_VERSIONS:
        raise EngineFailed(
            f"DeepSpeed {version} was not tried with Heddle; install {' or '.join(TESTED_VERSIONS)}"
        )
    missing = [
        f"{getattr(owner, '__name__', owner)}.{name}"
        for owner, names in SEAMS.items()
        for name in names
        if not hasattr(owner, name)
    ]
    if missing:
        raise EngineFailed(f"DeepSpeed {version} lacks {', '.join(missing)}")


def warm_up() -> None:
    """Do what torch and DeepSpeed do at their first use, once, in the fork server, threadless."""
    torch.set_num_threads(1)
    # DeepSpeed would compile a shared-memory op at its first use: minutes, and a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # imports the compiler stack


def begin() -> None:
    """Give torch and DeepSpeed the world of one that they live in, once in a process's life."""
    join_world_of_one()
    deepspeed.init_distributed("gloo", verbose=False)
    pipe_engine.p2p = LINKS


LINKS = LinksOfThread()


class _Module(PipelineModule):  # type: ignore[misc] # DeepSpeed is untyped
    """A PipelineModule cut where its own template says."""

    def __init__(self, seat: Seat, grid: Grid, **rest: Any) -> None:
        self.__dict__["seat"] = (
            seat  # before nn.Module.__init__: _partition_layers runs inside the constructor
        )
        with (
            mock.patch.object(pipe_module, "PipelineParallelGrid", return_value=grid),
            mock.patch.object(pipe_module.dist, "new_group", return_value=None),
            mock.patch.object(pipe_module, "print", create=True),
        ):
            super().__init__(topology=Topology(seat), **rest)

    def _partition_layers(self, method: object = None) -> None:  # noqa: ARG002 # DeepSpeed's call
        self.parts = list(self.seat.pipeline.template.layer_bounds())
        self._set_bounds(self.parts[self.seat.stage], self.parts[self.seat.stage + 1])


class _Pipeline(PipelineEngine):  # type: ignore[misc] # DeepSpeed is untyped
    """A PipelineEngine whose gradients, norm and loss are those of the whole plan."""

    owner: DeepSpeedEngine

    def _exec_forward_pass(self, buffer_id: int) -> None:
        self.owner.begin_pass()
        with self.owner.clock.part("forward"):
            super()._exec_forward_pass(buffer_id)
            self.owner.activity.advance()
            self.owner.pace.forward()

    def _exec_backward_pass(self, buffer_id: int) -> None:
        with self.owner.clock.part("backward"):
            super()._exec_backward_pass(buffer_id)
            self.owner.activity.advance()
            self.owner.pace.backward()

    def _broadcast_model(self) -> None:
        """There is nobody to send to in a world of one."""

    def _exec_reduce_tied_grads(self) -> None:
        """Tied weights are one tensor with contributors at both ends; the piece sum adds them."""

    def _exec_reduce_grads(self) -> None:
        self.owner.reduce(self._own_loss())

    def _own_loss(self) -> torch.Tensor | None:
        loss: torch.Tensor = self._scale_loss_by_gas(self.total_loss)
        return loss if self.is_last_stage() else None

    def _exec_optimizer_step(self, lr_kwargs: object = None) -> None:  # noqa: ARG002 # DeepSpeed's call
        self.owner.step()

    def _aggregate_total_loss(self) -> torch.Tensor:
        assert self.owner.progress.result is not None  # `reduce` came first
        return torch.tensor(self.owner.progress.result.loss)

    _INSTRUCTION_MAP = {  # noqa: RUF012 # DeepSpeed's own attribute
        **PipelineEngine._INSTRUCTION_MAP,
        schedule.ForwardPass: _exec_forward_pass,
        schedule.BackwardPass: _exec_backward_pass,
        schedule.ReduceGrads: _exec_reduce_grads,
        schedule.ReduceTiedGrads: _exec_reduce_tied_grads,
        schedule.OptimizerStep: _exec_optimizer_step,
    }


class DeepSpeedEngine:
    """One rank's stage of one plan on DeepSpeed; see `worker.engine.seam.Engine`."""

    def __init__(
        self, build: StageBuild, dataset: Dataset, pace: Pace, held_out: HeldOut | None = None
    ) -> None:
        """Build the engine; the thread that does it may be another than the one that trains."""
        seat, spec, world = build.seat, build.spec, build.world
        self._model, self._spec, self._seat, self._world = build.model, spec, seat, world
        self._buffers, self._still, self._update = build.buffers, build.still, StageUpdate(build)
        self.pace, self.activity = pace, build.activity
        read = self.activity.read
        self._feed = Feed(dataset, held_out, spec, seat.pipeline, world.device, read)
        self.progress = Progress()
        self._ready_epoch: int | None = None
        self._last_arrival_s = 0.0
        self._reduced_from_s = 0.0
        self.clock = StepClock(world.device)
        self._links = StageLinks(seat, world, pace, partial(self.clock.part, "waiting"))
        self._current = CurrentContext()
        self._contexts: Iterator[ForwardContext] = iter(())  # of the next forward passes
        self._parameters = StageParameters(build.buffers)
        self._pipeline = self._build()
        self._parameters.add_up()
        gradients = partial(gradient_pieces, build, common_refinement([build.plan]))
        self._sync = GradientSync(build.model, build.plan, seat, world, gradients)
        spread = Spread(build, self._sync.bucket)
        self.spread, self.weights = spread.weights_, spread.whole_weights

    def _build(self) -> _Pipeline:
        seat, model = self._seat, self._model
        tp = TensorParallel(seat.tp, seat.slot, self._world.groups.get(seat.tp_ranks))
        specs = [
            LayerSpec(class_of(model, i), model, i, tp, self._parameters.of, self._current)
            for i in range(model.layers + 2)
        ]
        LINKS.use(None)
        count = seat.pipeline.rounds  # by which DeepSpeed divides
        loss = weighted(loss_of(model, tp), lambda: count * self.progress.loss_scale)
        module = _Module(seat, Grid(seat), layers=specs, loss_fn=loss)
        for layer in module.forward_funcs:
            layer.recompute = seat.recompute
        place_experts(module.forward_funcs, seat, self._world)
        settings = {
            "train_batch_size": seat.pipeline.rounds * seat.pipeline.template.micro_batch,
            "train_micro_batch_size_per_gpu": seat.pipeline.template.micro_batch,
            "steps_per_print": None,
            "timers": {"throughput": {"enabled": False}},
            "pipeline": {"pipe_partitioned": False, "grad_partitioned": False},
        }
        never_stepped = torch.optim.SGD(module.parameters(), lr=0.0)
        with mock.patch.object(deepspeed, "PipelineEngine", _Pipeline):
            pipeline, *_ = deepspeed.initialize(
                model=module, optimizer=never_stepped, config=settings
            )
        pipeline.owner, pipeline.timers = self, deepspeed.utils.timer.NoopTimer()
        return pipeline  # type: ignore[no-any-return] # DeepSpeed is untyped

    def begin_pass(self) -> None:
        """Tell the layers what the next forward pass computes; a broken world needs none."""
        self._world.broken.check()  # an evaluation may meet no peer for minutes
        self._current.context = next(self._contexts)

    def train_step(self, ready_epoch: int | None) -> StepResult:
        """Train the next step."""
        self._ready_epoch = ready_epoch
        self._contexts = self._feed.contexts_of_step(self.progress)
        LINKS.use(self._links)
        for gradient in self._buffers.gradients.values():
            gradient.zero_()
        self.pace.begin()
        with torch.autograd.set_multithreading_enabled(False):  # one thread issues, see `Wire`
            self._pipeline.train_batch(self._feed.of_step(self.progress.step))
        sync_s = time.perf_counter() - self._reduced_from_s
        assert self.progress.result is not None
        return replace(self.progress.result, sync_s=sync_s)

    def evaluate(self) -> Evaluation:
        """See `worker.engine.seam.Engine`."""
        batches, seat = self._feed.of_evaluation(), self._seat
        self._contexts = self._feed.contexts_of_evaluation()
        LINKS.use(self._links)
        self.pace.begin()
        losses = None
        if batches:  # DeepSpeed cannot evaluate none, as a replica without a sample has
            losses = self._pipeline.eval_batch(
                iter(batches), reduce_output=None, bcast_loss=False, num_micro_batches=len(batches)
            )
        self.clock.forget()  # this is no part of a step
        loss = torch.zeros(1, dtype=torch.float64)
        if losses is not None and self._pipeline.is_last_stage() and seat.slot == 0:
            scale = seat.pipeline.rounds * self.progress.loss_scale
            loss += sum(map(float, self._world.host(torch.stack(losses)))) / scale
        self._world.all_reduce_(loss, "sum")
        held_out = self._feed.held_out
        return Evaluation(float(loss), held_out.samples if held_out else 0)

    def reduce(self, own_loss: torch.Tensor | None) -> None:
        """Sum gradients over all holders, then meet the whole plan once.

        Norm, loss, agreement on a switch, time of the step; see `worker.engine.step_summary`.
        The host waits once for the device: whoever has read the squares has all sums as well.

        Args:
            own_loss: of this pipeline, on its last stage.
        """
        step, size, rank = self.progress.step, self._world.size, self._seat.rank
        self._reduced_from_s = time.perf_counter()
        arrival = self.pace.arrival()
        scale = self.progress.loss_scale
        self._update.unscale_(scale)
        self._sync.sum_()
        read = [self._sync.squares()]
        if own_loss is not None:
            read.append(own_loss.detach().double().reshape(1))
        numbers = self._world.host(torch.cat(read))
        self.progress.gradients_step = step
        parts_s = self.clock.take()
        squares, own_losses = numbers.tensor_split([self._sync.num_pieces])
        share = float(own_losses.sum()) / scale if self._seat.slot == 0 else 0.0
        ready = self._ready_epoch or 0
        own = RankSummary(share, ready, arrival, parts_s, self._world.held_bytes())
        slots = torch.cat([squares, encode(own, rank, size)])
        self._world.all_reduce_(slots, "sum")
        norm = norm_of(slots[: self._sync.num_pieces])
        summary = decode(slots[self._sync.num_pieces :], size)
        loss = summary.loss
        overflows = math.isfinite(loss) and scale > 1  # a smaller scale may do
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        if self._spec.on_non_finite == "Stop" and not is_finite and not overflows:
            self.progress.gradients_step = None  # nobody is to roll forward with these
            raise NonFinite(step, loss, norm)
        self.progress.result = StepResult(
            step=step,
            loss=loss,
            gradient_norm=step_norm(loss, norm),
            agreed_epoch=summary.agreed_epoch,
            met_s=time.monotonic(),
            learning_rate=learning_rate(self._spec, step),
            loss_scale=scale,
            parts_s=summary.parts_s,
            memory_bytes=summary.memory_bytes,
            compute_s=computing_s(parts_s),
        )
        self._last_arrival_s = summary.last_arrival_s

    def step(self) -> None:
        """Apply the step whose gradients are summed and whose norm is known."""
        assert self.progress.result is not None  # `reduce` comes first
        norm = self.progress.result.gradient_norm
        self.apply(norm)  # what breaks from here on finds the step counted
        if math.isfinite(norm):
            self.spread()
        self.pace.synchronised(self._last_arrival_s)

    def apply(self, gradient_norm: float) -> None:
        """Apply the reduced gradients that are held, with the norm that some rank knows.

        A norm that is not finite skips the update everywhere, as it is the same everywhere.
        """
        progress, spec = self.progress, self._spec
        step = progress.gradients_step
        if step is None or step != progress.step:
            raise EngineFailed(f"no reduced gradients of step {progress.step} are held here")
        self._update.apply_(gradient_norm, learning_rate(spec, step), progress)
        progress.advance(gradient_norm, spec.scaling)
        self._still.boundary(progress)

    def overruns(self) -> int:
        """Emulated stages that took too long."""
        return self.pace.overruns

    def release(self) -> None:
        """Free the engine, which `destroy` and dropping the last reference do not.

        It is a knot of cycles, and on a last stage one runs through the autograd graph of the last
        micro-batch (kept in pipe_buffers, with hooks of the engine in it), where the garbage
        collector cannot follow.
        """
        pipeline = self._pipeline
        self._feed.close()
        with contextlib.suppress(Exception):  # a broken engine must still be freed
            pipeline.destroy()
        content = [dict(pipeline.__dict__), dict(self.__dict__)]
        pipeline.__dict__.clear()
        self.__dict__.clear()
        LINKS.use(None)
        threading.Thread(target=drop, args=(content,), name="free-engine", daemon=True).start()
