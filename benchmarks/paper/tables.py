"""Tables of the paper's figures in Markdown and JSON.

Throughput is modelled by Heddle's evaluator; seconds of searches are measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from benchmarks.paper.cells import PEERS
from benchmarks.paper.planners import NAMES, RETILED
from benchmarks.paper.results import CellResults, Result

HEDDLE = "heddle-3"
SAME_PLAN = 1e-9  # share by which sums of the same plan may differ by their order
RIVALS = (*PEERS, *(peer + RETILED for peer in PEERS))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def lead(one: CellResults, planner: str = HEDDLE) -> float | None:
    """Throughput of Heddle over that of the best baseline in its better placement."""
    ours, best = one.of(planner), one.best(RIVALS)
    if ours is None or best is None or not ours.samples_s:
        return None
    return ours.samples_s / best.most_samples_s


def lead_as_placed(one: CellResults) -> float | None:
    """Throughput of Heddle over that of the best baseline where each baseline puts its plan."""
    ours = one.of(HEDDLE)
    best = max((r.samples_s for r in one.results if r.planner in RIVALS), default=0.0)
    return ours.samples_s / best if ours is not None and best and ours.samples_s else None


def throughputs(cells: Sequence[CellResults]) -> str:
    """A row a cell: samples per second and seconds of each planner, and Heddle's lead."""
    planners = list(dict.fromkeys(one.planner for cell in cells for one in cell.results))
    head = ["model", "composition", "GPUs", *(NAMES[name] for name in planners)]
    head += ["lead as placed", "lead"]
    rows = []
    for cell in cells:
        leads = (lead_as_placed(cell), lead(cell))
        rows.append(
            [
                cell.cell.model,
                f"{cell.cell.listed.name} ({cell.cell.listed.origin})",
                cell.cell.gpus,
                *(_said(cell.of(name)) for name in planners),
                *("-" if ahead is None else f"{ahead - 1:+.1%}" for ahead in leads),
            ]
        )
    return table(head, rows)


def _said(one: Result | None) -> str:
    if one is None:
        return "not run"
    if not one.samples_s:
        return f"none ({one.seconds:.1f} s)"
    mark = "*" if one.beyond else ""
    return f"{one.samples_s:.1f}{mark} ({one.seconds:.1f} s)"


def details(cells: Sequence[CellResults]) -> str:
    """A row a cell and baseline: both placements, the best of its plans, its own estimate."""
    head = (
        "model",
        "composition",
        "planner",
        "first that fits",
        "placed by Heddle",
        "best of its plans",
        "by its own formula",
        "rank",
        "unused GPUs",
        "plans priced",
        "refused before",
    )
    rows = []
    for cell in cells:
        for one in cell.results:
            if one.planner not in RIVALS:
                continue
            ended = "" if one.finished else ", cut off"
            rows.append(
                (
                    cell.cell.model,
                    cell.cell.listed.name,
                    NAMES[one.planner],
                    f"{one.samples_s:.1f}" if one.samples_s else "none",
                    f"{one.replaced_samples_s:.1f}" if one.replaced_samples_s else "-",
                    f"{one.best_samples_s:.1f}" if one.best_samples_s else "-",
                    f"{one.own_samples_s:.1f}" if one.own_samples_s else "-",
                    one.rank + 1 if one.rank >= 0 else "-",
                    one.unused_gpus,
                    f"{one.plans_priced:,}{ended}",
                    ", ".join(f"{why} {count}" for why, count in one.refused.items()) or "-",
                )
            )
    return table(head, rows)


def behind(cells: Sequence[CellResults]) -> list[tuple[CellResults, Result, float]]:
    """(cell, the baseline ahead, Heddle over it) of the cells where Heddle at 3 s is below."""
    found = []
    for cell in cells:
        ahead, best = lead(cell), cell.best(RIVALS)
        if ahead is not None and best is not None and ahead < 1 - SAME_PLAN:
            found.append((cell, best, ahead))
    return found


def never_first(cells: Sequence[CellResults]) -> list[str]:
    """Baselines that are the best baseline of no cell, in the order of the figures."""
    first = {best.planner.removesuffix(RETILED) for c in cells if (best := c.best(RIVALS))}
    return [name for name in PEERS if name not in first]


def leads_by_best_plan(cells: Sequence[CellResults], planner: str) -> int:
    """Cells where the best of all plans of a baseline, in any order, is no slower than others'.

    If there are some, its order loses them; if not, no plan that it looks at is so fast.
    """
    names = (planner, planner + RETILED)
    found = 0
    for cell in cells:
        own = max((one.best_samples_s for one in cell.results if one.planner in names), default=0)
        other = cell.best([name for name in RIVALS if name not in names])
        found += bool(own) and own >= (other.most_samples_s if other else 0.0)
    return found


def as_json(cells: Sequence[CellResults]) -> str:
    """All results, a line a planner."""
    rows = [
        json.dumps(
            {
                "model": cell.cell.model,
                "name": cell.cell.listed.name,
                "composition": cell.cell.listed.text,
                **one.to_json(),
                "refused": dict(one.refused),
                "gpus_by_type": dict(one.gpus_by_type),
            }
        )
        for cell in cells
        for one in cell.results
    ]
    return "[\n" + ",\n".join(rows) + "\n]\n"
