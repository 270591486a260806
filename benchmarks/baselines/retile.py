"""The `-MoE` variant of a plan: its own structure, its experts tiled by Heddle's rule.

Of every stage the tiling that fits and makes the stage fastest is taken; then each stage is asked
again against the whole iteration.  A plan that fits and is faster as it was stays so.
Source: Heddle, sections 5.3 (expert tiling) and 6.3 (the `-MoE` bars).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.baselines.interface import Question
from benchmarks.baselines.judge import fits
from planner.cost.evaluate import cost_of
from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.cost.memory import slot_of, stage_memory
from planner.cost.stage import stage_seconds
from planner.cost.variants import variants_of
from planner.plans.plan import FilledTemplate, Plan, Stage

ASKED_AGAIN_GPUS = 128  # on more, a price takes too long to ask every stage again


def retiled(plan: Plan, question: Question) -> Plan | None:
    """The plan with its experts tiled; None if a stage fits in no way."""
    if question.workload.model.experts is None:
        return plan
    given = plan
    for t, template in enumerate(plan.templates):
        stages = []
        for s in range(len(template.stages)):
            ways = list(_ways(plan, t, s, question))
            if not ways:
                return None
            stages.append(min(ways, key=lambda way: way[0])[1])
        plan = _with(plan, t, replace(template, stages=tuple(stages)))
    if plan.gpus <= ASKED_AGAIN_GPUS:
        plan = _asked_again(plan, question)
    asked = (question.workload, question.composition, question.profile)
    kept = [one for one in (given, plan) if fits(one, question)]
    return min(kept, key=lambda one: cost_of(one, *asked).iteration_s, default=None)


def _asked_again(plan: Plan, question: Question) -> Plan:
    """Each stage once more, by the iteration of the whole plan."""
    asked = (question.workload, question.composition, question.profile)
    best_s = cost_of(plan, *asked).iteration_s
    for t in range(len(plan.templates)):
        for s in range(len(plan.templates[t].stages)):
            for _, stage in list(_ways(plan, t, s, question)):
                template = plan.templates[t]
                stages = (*template.stages[:s], stage, *template.stages[s + 1 :])
                trial = _with(plan, t, replace(template, stages=stages))
                seconds = cost_of(trial, *asked).iteration_s
                if seconds < best_s:
                    best_s, plan = seconds, trial
    return plan


def _with(plan: Plan, t: int, template: FilledTemplate) -> Plan:
    templates = (*plan.templates[:t], template, *plan.templates[t + 1 :])
    return replace(plan, templates=templates)


def _ways(plan: Plan, t: int, s: int, question: Question) -> Iterator[tuple[float, Stage]]:
    """(seconds of a micro-batch, stage) of every tiling that fits."""
    workload, profile, nodes = question.workload, question.profile, question.composition
    experts, template = workload.model.experts, plan.templates[t]
    assert experts is not None
    stage, cuts = template.stages[s], template.layer_bounds()
    layers = range(cuts[s], cuts[s + 1])
    nics = nodes.nics
    placed = [one for one in plan.placement if (one.template, one.stage) == (t, s)]
    devices = [
        Device(one.node, stage.gpu_type, nics.get(one.node)) for one in placed for _ in one.gpus
    ]
    is_dense = cuts[s + 1] - 1 <= experts.dense_blocks
    option = (stage.gpu_type, stage.tp)
    tilings = variants_of(workload, nodes, profile, option, allow_ep=not is_dense, gpus=plan.gpus)
    for ep, etp in sorted({(one.ep, one.etp) for one in tilings} | {(1, 0)}):
        way = replace(stage, ep=ep, etp=etp)
        ways = way.ep * way.expert_tp
        if way.is_tiled and (len(devices) % ways or experts.count % ep):
            continue
        changed = (*template.stages[:s], way, *template.stages[s + 1 :])
        slot = slot_of(replace(template, stages=changed), s, max(template.micro_batches))
        held = stage_memory(workload, profile, slot, stage.layers)
        if held.peak_bytes > profile.gpu_type(stage.gpu_type).usable_bytes:
            continue
        b, expert_s = template.micro_batch, 0.0
        if way.is_tiled:
            tiling = Tiling(way.tp, way.ep, way.expert_tp)
            expert_s = expert_seconds(workload, profile, tiling, devices, b, None)
        yield sum(stage_seconds(profile, workload.model, way, b, layers, expert_s)), way
