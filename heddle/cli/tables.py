"""Plans and costs as text for people: one row per stage, aligned.

Invariant: nothing here decides or computes; it prints what plan and cost say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields
from itertools import groupby
from typing import TYPE_CHECKING

from heddle.cli.measured import MeasuredCost
from planner.cluster.composition import Composition
from planner.cost.evaluate import PlanCost, StageCost
from planner.cost.memory import StageMemory, usable_bytes
from planner.cost.money import money_per_sample, plan_price
from planner.model.workload import Workload
from planner.plans.plan import FilledTemplate, Plan, Stage
from planner.profiles.profile import Profile
from planner.request import PlanAnswer, PlanRequest, SearchStep
from planner.wording import counted

if TYPE_CHECKING:
    from planner.plans.diff import PlanDiff

FEW = 4  # places, or shares of the batch, that a table lists one by one


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, the last one open."""
    table = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def measured_table(rows: Sequence[MeasuredCost]) -> str:
    """One row per measured plan: seconds measured, by formula, and the error."""
    return aligned(
        ("measured", "formula", "error", "plan"),
        [
            (
                f"{row.measured_s:.4g} s",
                f"{row.iteration_s:.4g} s",
                f"{100 * row.error:+.1f} %",
                row.plan,
            )
            for row in rows
        ],
    )


def plan_table(plan: Plan, cost: PlanCost) -> str:
    """One row per stage of each template; tiling and recomputation only where there is some."""
    unit, scale = memory_unit(cost.peak_memory_bytes)
    stages = [stage for template in plan.templates for stage in template.stages]
    tiled = any(stage.is_tiled for stage in stages)
    again = any(stage.recompute != "none" for stage in stages)
    where: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for one in plan.placement:
        where[one.template, one.stage].append(f"{one.node}:{','.join(map(str, one.gpus))}")
    rows = []
    for t, template in enumerate(plan.templates):
        priced = next(replica for replica in cost.replicas if replica.template == t)
        first = (f"{t}", f"{template.replicas}", _share(template))
        for s, stage in enumerate(template.stages):
            rows.append(
                (
                    *(first if s == 0 else ("", "", "")),
                    stage.gpu_type,
                    f"{stage.tp}",
                    *([f"{stage.ep} x {stage.expert_tp}"] if tiled else []),
                    f"{stage.layers}",
                    *([stage.recompute] if again else []),
                    _ms(priced.stages[s].time_s),
                    f"{priced.stages[s].peak_memory_bytes / scale:.2f}",
                    _first(where[t, s]),
                )
            )
    head = (
        *("template", "n", "b x M", "GPU type", "TP"),
        *(["EP x ETP"] if tiled else []),
        "layers",
        *(["recompute"] if again else []),
        *("stage ms", f"peak {unit}", "on"),
    )
    return aligned(head, rows)


def answer_sentences(answer: PlanAnswer, request: PlanRequest, profile: Profile) -> str:
    """Notes of an answer besides its plan, a sentence a line."""
    lines = [
        f"{answer.throughput_samples_s:.1f} samples/s, iteration "
        f"{answer.cost.iteration_s * 1e3:.0f} ms (simulated {answer.simulation_s * 1e3:.0f} ms), "
        f"{answer.plan.gpus} of {counted(request.composition.gpus, 'GPU')}{_at_most(request)}, "
        f"every piece of the state on at least {counted(answer.holders_min, 'node')}, "
        f"profile {profile.origin}, {_links(profile)}"
    ]
    per_hour = plan_price(answer.plan, request.composition)
    per_sample = money_per_sample(answer.plan, answer.cost, request.composition)
    if per_hour is not None and per_sample is not None:
        lines.append(
            f"an hour of {counted(len(answer.plan.nodes), 'node')} costs {per_hour:.2f}, a million "
            f"samples {per_sample * 1e6:.2f}"
        )
    if answer.bytes_to_move is not None:
        best = max((step.throughput_samples_s for step in answer.search_steps), default=0.0)
        fewest = ", the fewest of the plans within 0.5 % of the best"
        lines.append(
            f"{answer.bytes_to_move:,} bytes move from the current plan"
            f"{fewest if answer.throughput_samples_s < best else ''}"
        )
    lines += [
        f"one more node of {gain.gpus} {gain.gpu_type} adds {gain.gain_samples_s:.1f} samples/s"
        for gain in answer.marginal
    ]
    turns = [[*turn][-1] for _, turn in groupby(_gains(answer), key=lambda step: step.method)]
    way = ", ".join(f"{step.method} {step.throughput_samples_s:.1f}" for step in turns)
    priced = max((step.evaluations for step in answer.search_steps), default=0)
    lines.append(
        f"found in {answer.planning_s * 1e3:.0f} ms: {way} ({counted(priced, 'plan')} evaluated)"
    )
    return "\n".join([*lines, *(f"note: {note}" for note in answer.notes)])


def _at_most(request: PlanRequest) -> str:
    """`, at most 8 GPUs and 4 h100`; nothing where GPUs are not limited."""
    return f", at most {request.max_gpus}" if request.max_gpus else ""


def _gains(answer: PlanAnswer) -> Iterator[SearchStep]:
    """The steps of the search that found something better."""
    best = 0.0
    for step in answer.search_steps:
        if step.throughput_samples_s > best:
            best = step.throughput_samples_s
            yield step


def diff_table(diff: PlanDiff) -> str:
    """Changes between two plans, template by template, then the bytes by node pair."""
    rows = [
        (row.fate, _template(row.before), "->" if row.fate == "changed" else "", _template(after))
        for row in diff.templates
        for after in [None if row.fate == "kept" else row.after]
    ]
    text = [f"from {diff.before} to {diff.after}"]
    if diff.throughputs is not None:
        one, other = diff.throughputs
        text[0] += f": {one:.1f} -> {other:.1f} samples/s ({other / one - 1:+.1%})"
    text += ["", aligned(("", "from", "", "to"), rows), ""]
    if not diff.moves:
        return "\n".join([*text, "no byte moves"])
    pairs = sorted(diff.moves.items(), key=lambda move: (-move[1], move[0]))
    table = aligned(("from node", "to node", "MB"), [(*p, f"{n / 1e6:,.1f}") for p, n in pairs])
    return "\n".join([*text, table, f"{diff.bytes_to_move:,} bytes move in all"])


def _template(template: FilledTemplate | None) -> str:
    if template is None:
        return ""
    stages = " > ".join(_stage(stage) for stage in template.stages)
    return f"{template.replicas} x [{stages}] {_share(template)}"


def cost_table(plan: Plan, cost: PlanCost) -> str:
    """Work of each stage for one micro-batch; replicas of equal cost share their rows."""
    rows = [
        (name, alike, _stage(stage), *map(_ms, (*priced.work, priced.p2p_s, priced.time_s)))
        for name, alike, stage, priced in _priced_stages(plan, cost)
    ]
    head = ("t.r.s", "n x M", "stage", "forward ms", "backward ms", "TP ms", "recompute ms")
    return aligned((*head, "p2p ms", "stage ms"), rows)


def _priced_stages(plan: Plan, cost: PlanCost) -> Iterator[tuple[str, str, Stage, StageCost]]:
    """(template.replica.stage, replicas x micro-batches once a replica, stage, its cost)."""
    for replica, alike in cost.distinct:
        stages = plan.templates[replica.template].stages
        for s, (stage, priced) in enumerate(zip(stages, replica.stages, strict=True)):
            number = f"{alike} x {replica.micro_batches}" if s == 0 else ""
            yield f"{replica.template}.{replica.replica}.{s}", number, stage, priced


def memory_table(plan: Plan, cost: PlanCost, profile: Profile, workload: Workload) -> str:
    """Memory of one GPU of each stage, by kind."""
    unit, scale = memory_unit(cost.peak_memory_bytes)
    rows = []
    for name, _, stage, priced in _priced_stages(plan, cost):
        usable = usable_bytes(workload, profile.gpu_type(stage.gpu_type))
        over = " DOES NOT FIT" if priced.peak_memory_bytes > usable else ""
        peak = f"{priced.peak_memory_bytes / scale:.2f} of {usable / scale:.2f}{over}"
        rows.append((name, *(f"{size / scale:.2f}" for size in astuple(priced.memory)), peak))
    kinds = tuple(field.name for field in fields(StageMemory))
    return aligned((f"{unit} of t.r.s", *kinds, "peak"), rows)


def network_sentence(composition: Composition, profile: Profile) -> str:
    """The network card of a node of each GPU type, and how many nodes state one of their own."""
    cards = ", ".join(
        f"{name} {_gbit(profile.between_nodes(name).bandwidth_bytes_per_s)} Gbit/s"
        for name in composition.gpu_types
        if name in profile.types
    )
    nodes = counted(len(composition.nics), "node")
    stated = f"; {nodes} with a stated card" if composition.nics else ""
    return f"network card of a node ({profile.link_origin}): {cards}{stated}"


def _gbit(bytes_per_s: float) -> str:
    """The rate in 10⁹ bits per second, never as a power of ten."""
    rate = bytes_per_s * 8 / 1e9
    return f"{rate:.3g}" if rate < 100 else f"{rate:,.0f}"


def cost_sentence(cost: PlanCost, simulated_s: float, profile: Profile, *, placed: bool) -> str:
    """The whole iteration in a few sentences."""
    edges = "take the node's link" if placed else "count as crossing nodes"
    sent = f"broadcasts of weights {cost.broadcast_s * 1e3:.1f} ms, " if cost.broadcast_s else ""
    return (
        f"formula {cost.iteration_s * 1e3:.1f} ms, simulated {simulated_s * 1e3:.1f} ms; "
        f"{cost.throughput_samples_s:.1f} samples/s; gradient sum {cost.sync_s * 1e3:.1f} ms, "
        f"optimizer {cost.optimizer_s * 1e3:.1f} ms, {sent}bubble {cost.bubble:.0%}; "
        f"profile {profile.origin}, {_links(profile)}; edges inside a node {edges}"
    )


def _links(profile: Profile) -> str:
    """Where the seconds of messages come from, and which way the messages take."""
    way = ", staged through host memory" if profile.wire == "staged" else ""
    return f"links {profile.link_origin}{way}"


def memory_unit(peak_bytes: int) -> tuple[str, float]:
    """The unit that suits so much memory, and its bytes."""
    return ("GB", 1e9) if peak_bytes >= 1e9 else ("MB", 1e6)


def _stage(stage: Stage) -> str:
    again = "" if stage.recompute == "none" else f" {stage.recompute} recomputation"
    return f"{stage}{again}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _share(template: FilledTemplate) -> str:
    """B x M: one M if all are equal, else all of a few, or from the least to the most."""
    values = template.micro_batches
    said = ",".join(map(str, values)) if len(values) <= FEW else f"{min(values)}-{max(values)}"
    return f"{template.micro_batch} x {values[0] if len(set(values)) == 1 else said}"


def _first(places: list[str]) -> str:
    """All of a few places, else the first of them and how many more there are."""
    if len(places) <= FEW:
        return " ".join(places)
    return f"{' '.join(places[: FEW - 1])} and {len(places) - FEW + 1} more"
