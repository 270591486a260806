"""A small model, plans for it, and changes between them as the directives that agents get."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from planner.model.shape import ModelShape
from planner.model.tensors import held_tensors, model_tensors
from planner.plans.pieces import Piece, shard
from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from planner.plans.ranks import RankMap, Seat
from worker.contract import Directive, Member, Resume, TrainingSpec
from worker.model.boxes import view
from worker.state.held_state import HeldState

MODEL = ModelShape(name="small", layers=2, hidden=16, heads=4, kv_heads=4, ffn=32, vocab=64)
SPEC = TrainingSpec(model="small", data="text", global_batch=4, sequence_length=8, steps=10)


def plan(*pipelines: str, node: str = "a", first_gpu: int = 0, gpu_type: str = "demo-fast") -> Plan:
    """One template a pipeline: `2x1+1x1` is a stage of TP 2 with a block, then one of TP 1."""
    templates, placement, gpu = [], [], first_gpu
    for index, text in enumerate(pipelines):
        rows = [tuple(map(int, part.split("x"))) for part in text.split("+")]
        stages = tuple(Stage(gpu_type=gpu_type, tp=tp, layers=layers) for tp, layers in rows)
        templates.append(FilledTemplate(stages, 1, (1,)))
        for number, (tp, _) in enumerate(rows):
            placement.append(PlacedStage(index, 0, number, node, tuple(range(gpu, gpu + tp))))
            gpu += tp
    return Plan(tuple(templates), tuple(placement))


def pod_of(node: str) -> str:
    """The pod of a node."""
    return f"tiny-{node}-0"


def change(
    old: Plan | None, new: Plan, *, epoch: int = 2, resume: Resume | None = None
) -> Directive:
    """From `old`, which epoch 1 trains, to `new`; GPUs that only `old` uses leave."""
    held = {(seat.node, seat.gpu) for seat in RankMap.of(old).seats} if old else set()
    spots = [(seat.node, seat.gpu, seat.rank) for seat in RankMap.of(new).seats]
    stays = {(node, gpu) for node, gpu, _ in spots}
    rows = [*spots, *((node, gpu, None) for node, gpu in sorted(held - stays))]
    members = tuple(
        Member(
            pod=pod_of(node),
            slot=gpu,
            node=node,
            gpu=gpu,
            rank=rank,
            holds=1 if (node, gpu) in held else None,
        )
        for node, gpu, rank in rows
    )
    return Directive(
        job="tiny",
        epoch=epoch,
        phase="prepare",
        reason="join" if old else "start",
        plan=new.to_json(),
        plan_digest=new.digest,
        layouts={1: old.to_json()} if old else {},
        members=members,
        store="127.0.0.1:1",
        training=SPEC,
        resume=resume,
    )


def whole_state(model: ModelShape = MODEL) -> dict[str, tuple[torch.Tensor, ...]]:
    """{tensor: (weight, exp_avg, exp_avg_sq)} of the whole model, any numbers."""
    generator = torch.Generator().manual_seed(0)
    return {
        tensor.name: tuple(torch.randn(tensor.shape, generator=generator) for _ in range(3))
        for tensor in model_tensors(model)
    }


def shards_of(
    seat: Seat, state: Mapping[str, tuple[torch.Tensor, ...]], model: ModelShape = MODEL
) -> dict[str, tuple[torch.Tensor, ...]]:
    """What the engine of a seat holds of a state."""
    found = {}
    for tensor in held_tensors(model, seat.layers):
        whole = Piece(tensor.name, 0, tensor.rows, 0, max(1, tensor.experts))
        parts = view(tensor, whole, state[tensor.name], shard(tensor, seat))
        found[tensor.name] = tuple(part.clone() for part in parts)
    return found


def held_by(old: Plan, node: str, gpu: int, model: ModelShape = MODEL) -> HeldState:
    """What the rank on that GPU holds under `old`; nothing if it has no seat."""
    held, state = HeldState(model), whole_state(model)
    for seat in RankMap.of(old).seats:
        if (seat.node, seat.gpu) == (node, gpu):
            held.add_shards(seat, shards_of(seat, state, model))
    return held


def cut(
    piece: Piece, state: Mapping[str, tuple[torch.Tensor, ...]], model: ModelShape = MODEL
) -> tuple[torch.Tensor, ...]:
    """The parts of a piece, cut from the whole state."""
    dim = next(tensor.row_dim for tensor in model_tensors(model) if tensor.name == piece.tensor)
    parts = state[piece.tensor]
    return tuple(part.narrow(dim, piece.start, piece.stop - piece.start) for part in parts)
