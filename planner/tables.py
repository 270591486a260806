"""Plans and prices as text for people: one row per stage, aligned.

Invariant: nothing here decides or computes; it prints what plan and price say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields

from planner.cost import Price, ReplicaPrice
from planner.memory import StageMemory
from planner.plan import Plan, Stage
from planner.profile import Profile


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, the last one open."""
    table = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def plan_table(plan: Plan, price: Price) -> str:
    """One row per stage of each template, with the nodes of all its replicas."""
    unit, scale = _unit(price)
    rows = []
    for t, template in enumerate(plan.templates):
        priced = next(replica for replica in price.replicas if replica.template == t)
        for s, stage in enumerate(template.stages):
            where = [
                f"{placed.node}:{','.join(map(str, placed.gpus))}"
                for placed in plan.placement
                if (placed.template, placed.stage) == (t, s)
            ]
            rows.append(
                (
                    f"{t}" if s == 0 else "",
                    f"{template.replicas}" if s == 0 else "",
                    f"{template.micro_batch} x {_counts(template.micro_batches)}" if s == 0 else "",
                    stage.gpu_type,
                    f"{stage.tp}",
                    f"{stage.layers}",
                    f"{priced.stages[s].time_s * 1e3:.1f}",
                    f"{priced.stages[s].peak_memory_bytes / scale:.2f}",
                    " ".join(where),
                )
            )
    head = ("template", "n", "b x M", "GPU type", "TP", "layers", "stage ms", f"peak {unit}", "on")
    return aligned(head, rows)


def price_table(plan: Plan, price: Price) -> str:
    """What each stage does for one micro-batch; replicas that cost the same share their rows."""
    rows = []
    for replica, alike in _distinct(price):
        template = plan.templates[replica.template]
        for s, (stage, priced) in enumerate(zip(template.stages, replica.stages, strict=True)):
            work = priced.work
            rows.append(
                (
                    f"{replica.template}.{replica.replica}.{s}",
                    f"{alike} x {replica.micro_batches}" if s == 0 else "",
                    _stage(stage),
                    _ms(work.forward_s),
                    _ms(work.backward_s),
                    _ms(work.communication_s),
                    _ms(work.recompute_s),
                    _ms(priced.p2p_s),
                    _ms(priced.time_s),
                )
            )
    head = ("t.r.s", "n x M", "stage", "forward ms", "backward ms", "TP ms", "recompute ms")
    return aligned((*head, "p2p ms", "stage ms"), rows)


def memory_table(plan: Plan, price: Price, profile: Profile) -> str:
    """What one GPU of each stage holds, by kind."""
    unit, scale = _unit(price)
    rows = []
    for replica, _ in _distinct(price):
        template = plan.templates[replica.template]
        for s, (stage, priced) in enumerate(zip(template.stages, replica.stages, strict=True)):
            usable = profile.gpu_type(stage.gpu_type).usable_bytes
            over = " DOES NOT FIT" if priced.peak_memory_bytes > usable else ""
            rows.append(
                (
                    f"{replica.template}.{replica.replica}.{s}",
                    *(f"{size / scale:.2f}" for size in astuple(priced.memory)),
                    f"{priced.peak_memory_bytes / scale:.2f} of {usable / scale:.2f}{over}",
                )
            )
    kinds = tuple(field.name for field in fields(StageMemory))
    return aligned((f"{unit} of t.r.s", *kinds, "peak"), rows)


def price_sentence(price: Price, simulated_s: float, profile: Profile, *, placed: bool) -> str:
    """The whole iteration in a few sentences."""
    edges = "take the node's link" if placed else "count as crossing nodes"
    return (
        f"formula {price.iteration_s * 1e3:.1f} ms, simulated {simulated_s * 1e3:.1f} ms; "
        f"{price.throughput_samples_s:.1f} samples/s; gradient sum {price.sync_s * 1e3:.1f} ms, "
        f"optimizer {price.optimizer_s * 1e3:.1f} ms, bubble {price.bubble:.0%}; "
        f"profile {profile.origin}, links {profile.link_origin}; edges inside a node {edges}"
    )


def _unit(price: Price) -> tuple[str, float]:
    """The unit that suits the memory of a plan, and its bytes."""
    return ("GB", 1e9) if price.peak_memory_bytes >= 1e9 else ("MB", 1e6)


def _distinct(price: Price) -> list[tuple[ReplicaPrice, int]]:
    """The first of each kind of replica, with how many are like it."""
    kinds: dict[tuple[object, ...], list[ReplicaPrice]] = {}
    for replica in price.replicas:
        key = (replica.template, replica.micro_batches, replica.stages)
        kinds.setdefault(key, []).append(replica)
    return [(alike[0], len(alike)) for alike in kinds.values()]


def _stage(stage: Stage) -> str:
    tiling = f" ep{stage.ep} etp{stage.expert_tp}" if stage.is_tiled else ""
    again = "" if stage.recompute == "none" else f" {stage.recompute} recomputation"
    return f"{stage.gpu_type} tp{stage.tp} x {stage.layers}{tiling}{again}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _counts(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else ",".join(map(str, values))
