"""Computation and communication of a stage for one micro-batch, and its optimizer step.

Invariant: layers of a kind cost the same wherever they are; recomputation is part of the backward
pass.
Source: Heddle, section 5.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from planner.cost import formulas
from planner.cost.memory import slot_of, stepped_parameters
from planner.model.shape import ModelShape
from planner.model.workload import Workload
from planner.plans.plan import Stage
from planner.plans.ranks import RankMap
from planner.profiles.profile import BLOCKS, Profile


class StageWork(NamedTuple):
    """Work of a stage for one micro-batch, messages to its neighbours apart."""

    forward_s: float  # computation of the forward pass
    backward_s: float  # computation of the backward pass
    communication_s: float  # of TP groups and experts, both passes together
    recompute_s: float  # what recomputation adds, its communication included

    def at_speed(self, factor: float) -> StageWork:
        """The same on a node of that speed factor."""
        return StageWork(*(seconds / factor for seconds in self))


def stage_seconds(
    profile: Profile,
    model: ModelShape,
    stage: Stage,
    micro_batch: int,
    layers: range,
    expert_s: float = 0.0,
) -> StageWork:
    """Work of a stage for one micro-batch, on nodes of speed factor 1.

    Args:
        profile: supplies the costs.
        model: says which kinds the layers are.
        stage: its type, TP degree, recomputation and tiling.
        micro_batch: b.
        layers: in [embedding, block 1..L, head].
        expert_s: communication of the experts of one block in one pass, if they are tiled.

    Raises:
        UnprofiledConfiguration: the profile lacks a key of the stage.
    """
    forward_s = backward_s = communication_s = recompute_s = 0.0
    for kind, count in model.kinds_of(layers.start, layers.stop).items():
        exchanged_s = 0.0
        if kind == "moe_block":
            cost = profile.tiled_cost(
                stage.gpu_type, stage.tp, micro_batch, stage.ep, stage.expert_tp
            )
            exchanged_s = expert_s
        else:
            cost = profile.layer_cost(kind, stage.gpu_type, stage.tp, micro_batch)
        forward_s += count * cost.forward_s
        backward_s += count * cost.backward_s
        once = formulas.exchanged_passes(recomputes_all=False)
        communication_s += count * (cost.tp_communication_s + once * exchanged_s)
        if kind in BLOCKS:
            again = formulas.exchanged_passes(stage.recompute == "full") - once
            recompute_s += count * (cost.recompute_s(stage.recompute) + again * exchanged_s)
    return StageWork(forward_s, backward_s, communication_s, recompute_s)


def optimizer_seconds(
    ranks: RankMap, workload: Workload, profile: Profile, speed: Mapping[str, float]
) -> float:
    """The longest optimizer step of any rank; speed factors by node."""
    seconds: dict[tuple[int, int], float] = {}  # by template and stage, at full speed
    longest = 0.0
    for pipeline in ranks.pipelines:
        for index, group in enumerate(pipeline.ranks):
            key = (pipeline.template_index, index)
            if key not in seconds:
                stage = pipeline.template.stages[index]
                slot = slot_of(pipeline.template, index, 1)
                seconds[key] = formulas.optimizer_seconds(
                    stepped_parameters(workload, slot, stage.layers),
                    profile.gpu_type(stage.gpu_type).optimizer_latency_s,
                    profile.gpu_type(stage.gpu_type).optimizer_s_per_parameter,
                )
            longest = max(longest, seconds[key] / speed[ranks.seats[group[0]].node])
    return longest
