"""A picture of a plan's schedule: who computes what when, and where nobody does.

Invariant: every box is an entry of the simulation's timeline; nothing is drawn that is not
simulated.
"""

from __future__ import annotations

from html import escape

from planner.cost.evaluate import Price
from planner.cost.simulation import Simulation
from planner.plans.plan import Plan

MOST_REPLICAS = 8  # more of them repeat the picture
WIDTH, ROW, LEFT, TOP = 1200, 18, 190, 46
COLOURS = {"forward": "#4c78a8", "backward": "#f58518", "message": "#bab0ac", "end": "#54a24b"}


def schedule_svg(plan: Plan, price: Price, simulated: Simulation) -> str:
    """An SVG with one row per stage of each replica, then gradient sum and optimizer step.

    Args:
        plan: whose stages are named.
        price: of the plan; its replicas are in plan order.
        simulated: the same price, played.
    """
    shown = price.replicas[:MOST_REPLICAS]
    rows: dict[tuple[int, int, int], int] = {}
    for replica in shown:
        for stage in range(len(replica.stages)):
            rows[replica.template, replica.replica, stage] = len(rows)
    scale = (WIDTH - LEFT - 10) / simulated.step_s
    parts = [_head(simulated.step_s, len(rows), len(price.replicas) - len(shown))]
    for (template, replica_index, stage), row in rows.items():
        kind = plan.templates[template].stages[stage]
        label = f"{template}.{replica_index}.{stage}  {kind.gpu_type} tp{kind.tp} x {kind.layers}"
        y = TOP + row * ROW
        parts.append(f'<text x="8" y="{y + 12}">{escape(label)}</text>')
        start = LEFT + (simulated.step_s - price.sync_s - price.optimizer_s) * scale
        length = (price.sync_s + price.optimizer_s) * scale
        parts.append(_box(start, y, length, "end", "gradient sum and optimizer step"))
    for entry in simulated.timeline:
        place = rows.get((entry.template, entry.replica, entry.stage))
        if place is None or entry.end_s <= entry.start_s:
            continue
        operation = entry.instruction.operation
        kind_of = operation if operation in COLOURS else "message"
        title = (
            f"{operation} {entry.instruction.micro_batch}: {entry.start_s * 1e3:.2f} to "
            f"{entry.end_s * 1e3:.2f} ms"
        )
        x = LEFT + entry.start_s * scale
        width = (entry.end_s - entry.start_s) * scale
        parts.append(_box(x, TOP + place * ROW, width, kind_of, title))
    return "\n".join([*parts, "</svg>", ""])


def _head(step_s: float, rows: int, hidden: int) -> str:
    height = TOP + rows * ROW + 12
    more = f"; {hidden} more replicas are not drawn" if hidden > 0 else ""
    legend = "".join(
        f'<rect x="{LEFT + 120 * n}" y="26" width="10" height="10" fill="{colour}"/>'
        f'<text x="{LEFT + 120 * n + 15}" y="35">{name}</text>'
        for n, (name, colour) in enumerate(COLOURS.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="8" y="16" font-size="13">one iteration: {step_s * 1e3:.1f} ms, simulated'
        f"{more}</text>\n{legend}"
    )


def _box(x: float, y: int, width: float, kind: str, title: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW - 3}" '
        f'fill="{COLOURS[kind]}"><title>{escape(title)}</title></rect>'
    )
