"""The seam with DeepSpeed: everything that is patched, subclassed or overridden, in one module.

DeepSpeed keeps what it does well: 1F1B schedule, pipeline buffers, forward and backward of
micro-batches, optimizer step.
Replaced: where layers are cut, who talks to whom, how gradients and losses of different pipelines
add up.

Every override, and what breaks without it:
    PipelineParallelGrid (symbol)     a regular grid is hard-coded, pipe x data x model == world
    PipelineModule._partition_layers  a template could not be cut as its plan says
    pipe.module.dist.new_group        a second world; its forming waits 30 minutes for a dead peer
    pipe.engine.p2p (symbol)          one peer a stage, so no change of TP degree along a pipeline
    deepspeed.PipelineEngine (symbol) `initialize` looks the class up there
    _exec_reduce_grads                averages over ranks instead of weighting by samples
    _exec_reduce_tied_grads           does nothing without TiedLayerSpec; ours says so
    clip_fp32_gradients               counts only the pipeline's first rank
    _aggregate_total_loss             averages over replicas of one template
    _exec_forward_pass, _exec_backward_pass, _exec_optimizer_step
                                      the pace of emulated devices
    _INSTRUCTION_MAP                  holds functions: no `_exec_` override would ever be called
    pipe_partitioned, grad_partitioned = false
                                      would slice activations by the *local* TP degree
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Mapping
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

from planner.model.tensors import Tensor, layer_tensors
from planner.plans.pieces import Piece, held_pieces
from planner.plans.ranks import Seat
from worker.data.data import Dataset, micro_batches
from worker.engine.gradient_sync import GradientSync
from worker.engine.learning_rate import learning_rate
from worker.engine.seam import Parts, Progress, StageBuild, StepResult
from worker.errors import EngineFailed
from worker.model.model import TensorParallel, layer_class, vocabulary_loss
from worker.world.grid import Grid, Topology
from worker.world.pace import Pace
from worker.world.stage_links import StageLinks

TESTED_VERSIONS = ("0.19.8",)
SEAMS: dict[Any, tuple[str, ...]] = {
    PipelineEngine: (
        "_exec_reduce_grads",
        "_exec_reduce_tied_grads",
        "_exec_forward_pass",
        "_exec_backward_pass",
        "_exec_optimizer_step",
        "clip_fp32_gradients",
        "_aggregate_total_loss",
        "_INSTRUCTION_MAP",
        "_take_model_step",
        "_scale_loss_by_gas",
    ),
    PipelineModule: ("_partition_layers", "_set_bounds", "mpu"),
    schedule: ("ReduceGrads", "ReduceTiedGrads", "ForwardPass", "BackwardPass", "OptimizerStep"),
    pipe_engine: ("p2p",),
    pipe_engine.p2p: ("send", "recv", "init_process_groups"),
    pipe_module: ("PipelineParallelGrid", "dist"),
    pipe_module.dist: ("new_group",),
    deepspeed: ("PipelineEngine",),
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
    torch.optim.Adam(
        [torch.nn.Parameter(torch.zeros(1))]
    )  # the first one imports the compiler stack


def adopt_world() -> None:
    """Make DeepSpeed use the default group that has just formed."""
    deepspeed.init_distributed("gloo", verbose=False)


def forget_world() -> None:
    """Drop the groups that DeepSpeed has cached; a cached one keeps its connections open."""
    deepspeed.comm.comm.cdb = None
    release = getattr(deepspeed.comm.comm, "_release_process_group_references", None)
    if release is not None:
        release()


class _Module(PipelineModule):  # type: ignore[misc] # DeepSpeed is untyped
    """A PipelineModule cut where its own template says."""

    def __init__(self, seat: Seat, grid: Grid, **rest: Any) -> None:
        self.__dict__["seat"] = (
            seat  # before nn.Module.__init__: _partition_layers runs inside the constructor
        )
        with (
            mock.patch.object(pipe_module, "PipelineParallelGrid", return_value=grid),
            mock.patch.object(pipe_module.dist, "new_group", return_value=None),
        ):
            super().__init__(topology=Topology(seat), **rest)

    def _partition_layers(self, method: object = None) -> None:  # noqa: ARG002 # DeepSpeed's call
        self.parts = list(self.seat.pipeline.template.layer_bounds())
        self._set_bounds(self.parts[self.seat.stage], self.parts[self.seat.stage + 1])


class _Pipeline(PipelineEngine):  # type: ignore[misc] # DeepSpeed is untyped
    """A PipelineEngine whose gradients, norm and loss are those of the whole plan."""

    owner: DeepSpeedEngine

    def _exec_forward_pass(self, buffer_id: int) -> None:
        super()._exec_forward_pass(buffer_id)
        self.owner.pace.forward()

    def _exec_backward_pass(self, buffer_id: int) -> None:
        super()._exec_backward_pass(buffer_id)
        self.owner.pace.backward()

    def _exec_reduce_tied_grads(self) -> None:
        """Tied weights would be one canonical tensor with two holders.

        The piece sum covers them.
        """

    def _exec_reduce_grads(self) -> None:
        self.owner.reduce(self._own_loss())

    def _own_loss(self) -> float:
        loss: torch.Tensor = self._scale_loss_by_gas(self.total_loss)
        return loss.item() if self.is_last_stage() else 0.0

    def clip_fp32_gradients(self) -> None:
        self.owner.clip()

    def _exec_optimizer_step(self, lr_kwargs: object = None) -> None:
        super()._exec_optimizer_step(lr_kwargs)
        self.owner.stepped()

    def _aggregate_total_loss(self) -> torch.Tensor:
        return torch.tensor(self.owner.result.loss)

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

    def __init__(self, build: StageBuild, dataset: Dataset, pace: Pace) -> None:
        """Build the engine."""
        seat, spec, world = build.seat, build.spec, build.world
        self._model, self._spec, self._seat, self._world = build.model, spec, seat, world
        self._cuts = build.plan.tp_degrees
        self._dataset = dataset
        self.pace = pace
        self.progress = Progress(step=build.step)
        self.result = StepResult(0.0, 0.0, None)
        self._ready_epoch: int | None = None
        self._pending_norm = self._last_arrival = 0.0
        self._weight = seat.pipeline.samples / spec.global_batch
        self._pipeline = self._build(build.source)
        self._named: dict[str, torch.nn.Parameter] = dict(self._pipeline.module.named_parameters())
        self._sync = GradientSync(build.model, build.plan, seat, world, self._gradients)

    def _build(self, source: Callable[[Tensor], Parts]) -> _Pipeline:
        world, seat, model, spec = self._world, self._seat, self._model, self._spec
        tp = TensorParallel(seat.tp, seat.slot, seat.tp_ranks, world.groups)
        parts = {t.name: source(t) for layer in seat.layers for t in layer_tensors(model, layer)}
        pipe_engine.p2p = StageLinks(seat, self.pace)
        specs = [
            LayerSpec(layer_class(model, i), model, i, tp, lambda t: parts[t.name][0])
            for i in range(model.layers + 2)
        ]
        with contextlib.redirect_stdout(
            io.StringIO()
        ):  # rank 0 prints a regular grid's idea of the world
            module = _Module(seat, Grid(seat, world), layers=specs, loss_fn=vocabulary_loss(tp))
        optimizer = torch.optim.Adam(
            module.parameters(),
            lr=spec.learning_rate,
            betas=spec.betas,
            eps=spec.epsilon,
            foreach=True,
        )
        settings = {
            "train_batch_size": seat.pipeline.samples,
            "train_micro_batch_size_per_gpu": seat.pipeline.template.micro_batch,
            "gradient_clipping": spec.gradient_clip,
            "steps_per_print": None,
            "pipeline": {"pipe_partitioned": False, "grad_partitioned": False},
        }
        with mock.patch.object(deepspeed, "PipelineEngine", _Pipeline):
            pipeline, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=settings)
        pipeline.owner = self
        pipeline.global_steps = self.progress.step
        for name, parameter in module.named_parameters():
            if len(parts[name]) > 1:
                pipeline.optimizer.state[parameter] = {
                    "step": torch.tensor(float(self.progress.step)),
                    "exp_avg": parts[name][1],
                    "exp_avg_sq": parts[name][2],
                }
        return pipeline  # type: ignore[no-any-return] # DeepSpeed is untyped

    def train_step(self, ready_epoch: int | None) -> StepResult:
        """Train the next step."""
        step, pipeline = self.progress.step, self._seat.pipeline
        self._ready_epoch = ready_epoch
        self._set_rate(step)
        self.pace.begin()
        self._pipeline.train_batch(
            iter(
                micro_batches(
                    self._dataset,
                    self._spec.seed,
                    step,
                    self._spec.global_batch,
                    pipeline.first_sample,
                    pipeline.num_micro_batches,
                    pipeline.template.micro_batch,
                )
            )
        )
        return self.result

    def reduce(self, own_loss: float) -> None:
        """Sum gradients over all holders, then meet the whole plan once.

        Norm, loss, and agreement on a switch.

        The slots behind the squares are: the loss, the ready epoch and its square, and each rank's
        arrival.  All ranks are ready for the same epoch e exactly when size x sum of squares ==
        (sum)^2 and the sum is not 0.
        """
        step = self.progress.step
        arrival = self.pace.arrival()
        self._sync.sum_(self._weight)
        self.progress.gradients_step = step
        ready = float(self._ready_epoch or 0)
        tail = torch.zeros(3 + self._world.size, dtype=torch.float64)
        tail[0] = own_loss * self._weight if self._seat.slot == 0 else 0.0
        tail[1], tail[2] = ready, ready * ready
        tail[3 + self._seat.rank] = arrival
        slots = torch.cat([self._sync.squares(), tail])
        self._world.all_reduce_(slots, "sum")
        norm = float(slots[: self._sync.num_pieces].sum().sqrt())
        loss, total, squares, *arrivals = slots[self._sync.num_pieces :].tolist()
        agreed = self._world.size * squares == total * total and total > 0
        self.progress.norm = (step, loss, norm)
        self.result = StepResult(loss, norm, round(total / self._world.size) if agreed else None)
        self._pending_norm = norm
        self._last_arrival = max(arrivals)

    def clip(self) -> None:
        """Clip by the plan-wide norm; called from DeepSpeed's model step."""
        self._sync.clip_(self._pending_norm, self._spec.gradient_clip)

    def stepped(self) -> None:
        """The optimizer has applied the step."""
        self.progress.step += 1
        self.progress.gradients_step = None
        self.pace.synchronised(self._last_arrival)

    def apply(self, gradient_norm: float) -> None:
        """Apply the reduced gradients that are held, with the norm that another rank knows."""
        step = self.progress.gradients_step
        if step is None or step != self.progress.step:
            raise EngineFailed(f"no reduced gradients of step {self.progress.step} are held here")
        self._set_rate(step)
        self._sync.clip_(gradient_norm, self._spec.gradient_clip)
        self._pipeline.optimizer.step()
        self.progress.step += 1
        self.progress.gradients_step = None

    def shards(self) -> Mapping[str, Parts]:
        """The live tensors; moments exist from the first applied step on."""
        state = self._pipeline.optimizer.state
        found: dict[str, Parts] = {}
        for name, parameter in self._named.items():
            weight, moments = parameter.data, state.get(parameter)
            if not moments:
                moments = {
                    "exp_avg": torch.zeros_like(weight),
                    "exp_avg_sq": torch.zeros_like(weight),
                }
            found[name] = (weight, moments["exp_avg"], moments["exp_avg_sq"])
        return found

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
        with contextlib.suppress(Exception):  # a broken engine must still be freed
            pipeline.destroy()
        content = [dict(pipeline.__dict__)]
        pipeline.__dict__.clear()
        self._named = {}
        self.__dict__.pop("_sync", None)
        threading.Thread(target=content.clear, daemon=True).start()

    def _set_rate(self, step: int) -> None:
        for group in self._pipeline.optimizer.param_groups:
            group["lr"] = learning_rate(self._spec.learning_rate, self._spec.warmup_steps, step)

    def _gradients(self) -> dict[Piece, torch.Tensor]:
        found: dict[Piece, torch.Tensor] = {}
        for layer in self._seat.layers:
            for tensor in layer_tensors(self._model, layer):
                gradient = self._named[tensor.name].grad
                assert gradient is not None  # every parameter takes part in every step
                start = 0
                for piece in held_pieces(tensor, self._seat.tp, self._seat.slot, self._cuts):
                    if tensor.dim is None:
                        found[piece] = gradient
                        continue
                    rows = piece.stop - piece.start
                    found[piece] = gradient.narrow(tensor.dim, start, rows)
                    start += rows
        return found
