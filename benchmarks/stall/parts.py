"""The stall of a change, part by part, over all runs of the demo."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Rows of the stall by reason and part: median and maximum over all runs, in milliseconds."""
    parts: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for epoch in run["epochs"]:
            change = epoch["reconfiguration"]
            if change is None:
                continue
            row = parts[epoch["reason"]]
            row["stall_s"].append(change["stall_s"])
            for name, seconds in change["parts"].items():
                row[name].append(seconds)
    names = list(dict.fromkeys(name for row in parts.values() for name in row))
    lines = [
        "| part | "
        + " | ".join(f"{r} (n={len(row['stall_s'])})" for r, row in parts.items())
        + " |"
    ]
    lines.append("| --- |" + " --- |" * len(parts))
    for name in names:
        cells = [
            f"{1e3 * statistics.median(row[name]):.0f} / {1e3 * max(row[name]):.0f}"
            for row in parts.values()
        ]
        lines.append(f"| {name.removesuffix('_s')} | " + " | ".join(cells) + " |")
    return lines
