"""The first kernels of a rank that joins, run by itself before it says that it is ready.

A device loads a kernel at its first use and chooses algorithms by shapes, which takes seconds that
the whole plan would wait.  One forward and backward pass of the stage at its own shapes has both
done.  Only a rank on which nothing trains does this: another one has run its kernels.
Invariant: nothing is sent.  Peers are played by `SilentGroup`, so the thread that prepares issues
no collective, and the gradients that are left are zeroed before the first step.
"""

from __future__ import annotations

from typing import cast

import torch

from planner.model.shape import StageRecompute
from planner.model.tensors import held_tensors
from worker.engine.accumulation import weighted
from worker.engine.expert_place import place_experts
from worker.engine.optimizer import recipe_of, update_
from worker.engine.parameters import StageParameters
from worker.engine.seam import DTYPES, StageBuild
from worker.model.forward_context import CurrentContext, Documents, ForwardContext
from worker.model.own import class_of, loss_of
from worker.model.parallel import TensorParallel
from worker.world.silent import SilentGroup, SilentPeers


def warm_kernels(build: StageBuild) -> None:
    """Run a forward and a backward pass of a stage, and an update of a few numbers."""
    seat, model, device = build.seat, build.model, build.world.device
    template, current = seat.pipeline.template, CurrentContext()
    size, length = template.micro_batch, build.spec.sequence_length
    tp = TensorParallel(seat.tp, seat.slot, SilentGroup(seat.tp_ranks) if seat.tp > 1 else None)
    parameters = StageParameters(build.buffers)
    layers = [
        class_of(model, index)(model, index, tp, parameters.of, current) for index in seat.layers
    ]
    for layer in layers:
        layer.recompute = cast("StageRecompute", seat.recompute)
    place_experts(layers, seat, SilentPeers(device))
    parameters.add_up()
    documents = None
    if build.spec.data.document_mask:
        found = Documents.of([[length]] * size)
        documents = found._replace(positions=device.put(found.positions))
    current.context = ForwardContext(
        seed=build.spec.seed,
        samples=range(size),
        documents=documents,
        device=device,
        sample_weight=1 / build.spec.global_batch,
    )
    with torch.autograd.set_multithreading_enabled(False):
        x = _first(build, size, length)
        for layer in layers:
            x = layer(x)
        if seat.stage == len(template.stages) - 1:
            labels = device.put(torch.zeros((size, length), dtype=torch.int64))
            weight = device.put(torch.tensor(1.0, dtype=torch.float64))
            x = weighted(loss_of(model, tp), lambda: 1.0)(x, (labels, weight))
        torch.zeros_like(x).add_(x.detach())  # as DeepSpeed adds up losses
        x.backward(torch.ones_like(x))  # type: ignore[no-untyped-call] # torch's
    _update(build)


def _first(build: StageBuild, size: int, length: int) -> torch.Tensor:
    """Input of the stage: tokens, or what the stage before it would send."""
    device = build.world.device
    if build.seat.stage == 0:
        return device.put(torch.zeros((size, length), dtype=torch.int64))
    shape, dtype = (size, length, build.model.hidden), DTYPES[build.spec.precision]
    return device.put(torch.zeros(shape, dtype=dtype)).requires_grad_()


def _update(build: StageBuild) -> None:
    """Update numbers that are nobody's, as those of the stage will be."""
    tensor, device = held_tensors(build.model, build.seat.layers)[0], build.world.device
    weight, mean, square, gradient = (device.put(torch.zeros(16)) for _ in range(4))
    copy = None
    if build.spec.precision != "fp32":
        copy = weight.to(DTYPES[build.spec.precision])
    recipe = recipe_of(build.spec, tensor)
    update_((weight, mean, square), gradient, 1.0, 0.0, 0, recipe, copy)
