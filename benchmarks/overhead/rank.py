"""One process of a side: it trains a few steps in turn, and says what they took.

Both sides have the same layers, weights, samples, loss, clipping and AdamW; only what drives them
differs: Heddle's engine, DeepSpeed's own PipelineEngine on its regular grid, or a loop of torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.turns import in_turns
from planner.model.shape import ModelShape
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap, Seat
from worker.contract import TrainingSpec

Step = Callable[[], float]  # trains one, and gives its loss, 0 where no rank of this stage has it


def claims(rank: int, store: Any) -> dict[str, Any]:
    """{"seconds": of the processor a step, in each block; "losses": of all steps} of one process.

    The first ranks are Heddle's, the others those of the other side.
    """
    with contextlib.redirect_stdout(sys.stderr):  # where DeepSpeed's log goes from its import on
        wanted = json.loads(os.environ["WANTED"])
        plan = Plan.from_json(wanted["plan"])
        spec = TrainingSpec.model_validate(wanted["spec"])
        side, place = divmod(rank, plan.gpus)
        seat = RankMap.of(plan).seats[place]
        rival = {"plain": _plain, "stock": _stock}[wanted["rival"]]
        step = (rival if side else _heddle)(store, spec, plan, seat)
        return _in_turn(store, side, place, plan.gpus, step, wanted["blocks"], wanted["steps"])


def _in_turn(
    store: Any, side: int, place: int, ranks: int, step: Step, blocks: int, steps: int
) -> dict[str, Any]:
    """Blocks of steps, each after one of the other side; the first one warms up."""
    losses: list[float] = []
    seconds: list[float] = []

    def block() -> None:
        begun = time.process_time()
        losses.extend(step() for _ in range(steps))
        seconds.append((time.process_time() - begun) / steps)

    in_turns(store, side, place, (ranks, ranks), block, blocks + 1)
    return {"seconds": seconds[1:], "losses": losses}


def built(
    store: Any, spec: TrainingSpec, plan: Plan, seat: Seat, still: Any = None
) -> tuple[Any, Any]:
    """A rank's engine, and the shards that it trains in place, with the weights of the seed.

    `still` hears of its updates; by default nobody reads the state.
    """
    from planner.model.arithmetic import INITIAL_DEVIATION
    from worker.checkpoint.start_source import FirstWeights
    from worker.engine.deepspeed import begin, warm_up
    from worker.engine.seam import StageBuild
    from worker.model.initial_weights import initial_rows
    from worker.rank.process import GlooServices
    from worker.state.shards import TargetShards
    from worker.state.still import StillState

    warm_up()
    os.environ["LOCAL_RANK"] = "0"
    begin()
    services, model = GlooServices(emulate=False, store_key=""), spec.model_shape()
    world = services.form_world(store, 1, seat.rank, model, plan)
    target = TargetShards.first(
        model,
        seat,
        FirstWeights(partial(initial_rows, spec.seed, INITIAL_DEVIATION)).fill,
        services.activity,
    )
    build = StageBuild(
        model=model,
        spec=spec,
        plan=plan,
        seat=seat,
        world=world,
        shards=target.shards,
        buffers=target.buffers,
        activity=services.activity,
        still=still or StillState(),
    )
    return services.build_engine(build), target.shards


def _heddle(store: Any, spec: TrainingSpec, plan: Plan, seat: Seat) -> Step:
    engine, _ = built(store, spec, plan, seat)
    return lambda: engine.train_step(None).loss


def _layers(model: ModelShape, spec: TrainingSpec) -> list[Callable[[], Any]]:
    """Factories of the layers of the whole model, on the weights of the seed."""
    import torch

    from planner.model.arithmetic import INITIAL_DEVIATION
    from planner.model.tensors import Tensor
    from worker.model.initial_weights import initial_rows
    from worker.model.model import layer_class
    from worker.model.parallel import TensorParallel

    def source(tensor: Tensor) -> torch.Tensor:
        return initial_rows(spec.seed, INITIAL_DEVIATION, tensor, 0, tensor.shape[tensor.dim or 0])

    return [
        partial(layer_class(model, index), model, index, TensorParallel(), source)
        for index in range(model.layers + 2)
    ]


def _adam(spec: TrainingSpec, parameters: Any) -> Any:
    import torch

    settings = {"lr": spec.learning_rate, "betas": spec.betas, "eps": spec.epsilon}
    return torch.optim.AdamW(parameters, weight_decay=spec.weight_decay, **settings)


def _batches(spec: TrainingSpec, seat: Seat) -> Iterator[Any]:
    """The micro-batches of a replica, for ever."""
    import itertools

    from worker.data.batches import micro_batches
    from worker.data.dataset import Dataset

    data = Dataset(spec.data, spec.sequence_length)
    pipeline = seat.pipeline
    count, size = pipeline.num_micro_batches, pipeline.template.micro_batch
    for step in itertools.count():
        found = micro_batches(
            data, spec.seed, step, spec.global_batch, pipeline.first_sample, count, size
        )
        yield from ((batch.tokens, batch.labels) for batch in found)


def _plain(_store: Any, spec: TrainingSpec, _plan: Plan, seat: Seat) -> Step:
    """A loop of torch on the whole model."""
    import torch

    from worker.model.loss import vocabulary_loss
    from worker.model.parallel import TensorParallel

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(make() for make in _layers(spec.model_shape(), spec)))
    adam, loss_of = _adam(spec, model.parameters()), vocabulary_loss(TensorParallel())
    batches, count = _batches(spec, seat), seat.pipeline.num_micro_batches

    def step() -> float:
        adam.zero_grad()
        losses = 0.0
        for _ in range(count):
            tokens, labels = next(batches)
            loss = loss_of(model(tokens), labels) / count
            torch.autograd.backward(loss)
            losses += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.gradient_clip)
        adam.step()
        return losses

    return step


def _stock(store: Any, spec: TrainingSpec, plan: Plan, seat: Seat) -> Step:
    """A rank of DeepSpeed's own engine: pipelines of equal stages, equal replicas."""
    import deepspeed
    import torch
    from deepspeed.pipe import LayerSpec, PipelineModule
    from deepspeed.runtime.pipe.topology import PipeDataParallelTopology
    from torch.distributed import PrefixStore, init_process_group

    from worker.engine.deepspeed import warm_up
    from worker.model.loss import vocabulary_loss
    from worker.model.parallel import TensorParallel

    warm_up()
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(seat.rank), "WORLD_SIZE": str(plan.gpus)}
    own = PrefixStore("stock", store)
    init_process_group("gloo", store=own, rank=seat.rank, world_size=plan.gpus)
    deepspeed.init_distributed("gloo", verbose=False)

    class Made(torch.nn.Module):
        """A layer that DeepSpeed makes where it belongs."""

        def __init__(self, make: Callable[[], Any]) -> None:
            super().__init__()
            self.layer = make()

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    (template,) = plan.templates
    stages, replicas = len(template.stages), template.replicas
    pipeline = seat.pipeline
    module = PipelineModule(
        [LayerSpec(Made, make) for make in _layers(spec.model_shape(), spec)],
        topology=PipeDataParallelTopology(stages, replicas),
        loss_fn=vocabulary_loss(TensorParallel()),
        partition_method="uniform",
        activation_checkpoint_interval=0,
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=_adam(spec, module.parameters()),
        config={
            "train_batch_size": spec.global_batch,
            "train_micro_batch_size_per_gpu": template.micro_batch,
            "gradient_clipping": spec.gradient_clip,
            "steps_per_print": None,
        },
    )
    batches = _batches(spec, seat)
    assert pipeline.num_micro_batches == engine.gradient_accumulation_steps()
    return lambda: float(engine.train_batch(batches))
