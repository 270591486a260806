"""Plans and prices as text for people: one row per stage, aligned.

Invariant: nothing here decides or computes; it prints what plan and price say.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost import Price
from planner.plan import Plan
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
                    f"{priced.stages[s].peak_memory_bytes / 1e6:.2f}",
                    " ".join(where),
                )
            )
    head = ("template", "n", "b x M", "GPU type", "TP", "layers", "stage ms", "peak MB", "on")
    return aligned(head, rows)


def price_table(plan: Plan, price: Price, profile: Profile) -> str:
    """One row per stage of each replica, with its times and its memory."""
    rows = []
    for replica in price.replicas:
        template = plan.templates[replica.template]
        for s, (stage, priced) in enumerate(zip(template.stages, replica.stages, strict=True)):
            usable = profile.gpu_type(stage.gpu_type).usable_bytes
            over = priced.peak_memory_bytes > usable
            rows.append(
                (
                    f"{replica.template}.{replica.replica}.{s}",
                    f"{stage.gpu_type} tp{stage.tp} x {stage.layers}",
                    f"{priced.forward_s * 1e3:.1f}",
                    f"{priced.backward_s * 1e3:.1f}",
                    f"{priced.p2p_s * 1e3:.1f}",
                    f"{priced.time_s * 1e3:.1f}",
                    f"{priced.peak_memory_bytes / 1e6:.2f} of {usable / 1e6:.2f}"
                    + (" DOES NOT FIT" if over else ""),
                )
            )
    head = ("t.r.s", "stage", "forward ms", "backward ms", "p2p ms", "stage ms", "memory MB")
    return aligned(head, rows)


def _counts(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else ",".join(map(str, values))
