"""The growing cluster, trained: throughput over time while GPUs join, with every break.

Each planner plans each size anew; its plans drive one job on emulated devices.  The emulated clock
counts a step `SLOWDOWN` times shorter than it took, and a break as long as it took.
Invariant: a planner without a trainable plan of every size is left out, by name and reason.
Source: Heddle, section 6.2 (the figure of the growing cluster).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.evaluation.references import expanded
from benchmarks.paper.cells import PEERS, Cell, cells_of
from benchmarks.paper.measured.emulated_job import Size, train
from benchmarks.paper.measured.stand_in import BATCH, SLOWDOWN
from benchmarks.paper.picture import COLOURS
from benchmarks.paper.planners import NAMES, plan_cell
from benchmarks.paper.tables import HEDDLE, table
from heddle.cli.pictures import STYLE, write

PLANNERS = (HEDDLE, *PEERS)
BUDGET_S = 5.0  # of each baseline and size
HOLD_S = 60.0  # wall seconds of a size


def measure(planners: Sequence[str] = PLANNERS) -> dict[str, Any]:
    """By planner: its sizes, and the steps and changes of its job; or why there is none."""
    found: dict[str, Any] = {"trained": {}, "left_out": {}}
    for planner in planners:
        rows = [_planned(cell, planner) for cell in cells_of("growth")]
        missing = [row for row in rows if isinstance(row, str)]
        sizes = [row for row in rows if not isinstance(row, str)]
        if missing:
            found["left_out"][planner] = missing[0]
            continue
        run = train([size for size, _ in sizes], HOLD_S)
        found["trained"][planner] = run | {
            "sizes": [
                {
                    "gpus": size.nodes.gpus,
                    "used": size.plan.gpus,
                    "search_s": size.search_s,
                    "modelled_s": modelled_s,
                }
                for size, modelled_s in sizes[: len(run["joined_s"]) - 1]
            ]
        }
    return found


def _planned(cell: Cell, planner: str) -> tuple[Size, float] | str:
    """The plan of a size, with its modelled seconds a step; or why the job cannot train it."""
    smaller = Cell(cell.model, replace(cell.listed, batch=BATCH))
    row = plan_cell(smaller, planner, BUDGET_S)[planner]
    counted = row["counted"]
    if counted is None:
        return f"none of its plans fits on {cell.gpus} GPUs"
    if counted["plan"] is None:
        return f"on {cell.gpus} GPUs no plan of Heddle says it: {counted['beyond']}"
    plan = expanded(counted["plan"])
    size = Size(nodes=cell.listed.composition, plan=plan, search_s=row["seconds"])
    return size, counted["iteration_s"]


def emulated_steps(run: Mapping[str, Any]) -> list[tuple[float, float]]:
    """(start, end) of each step on the emulated clock, seconds since the first."""
    found, now_s, before_s = [], 0.0, 0.0
    for start_s, end_s in run["steps"]:
        now_s += max(0.0, start_s - before_s)
        found.append((now_s, now_s + (end_s - start_s) / SLOWDOWN))
        now_s, before_s = found[-1][1], end_s
    return found


def rates(run: Mapping[str, Any]) -> list[tuple[float, float]]:
    """By size: samples per emulated second with its breaks, and of its last step alone.

    A size lasts from its join to the next one; steps that it shares count by their parts in it.
    """
    steps = emulated_steps(run)
    wall = [at_s for step in run["steps"] for at_s in step]
    clock = [at_s for step in steps for at_s in step]
    bounds: list[float] = np.interp(run["joined_s"], wall, clock).tolist()
    found = []
    for left, right in pairwise(bounds):
        shares = [
            max(0.0, min(right, end) - max(left, start)) / (end - start) for start, end in steps
        ]
        last = [end - start for (start, end), share in zip(steps, shares, strict=True) if share][-1]
        found.append((BATCH * sum(shares) / (right - left), BATCH / last))
    return found


def pace_errors(run: Mapping[str, Any]) -> list[float]:
    """By size: the median step of its plan over the modelled one, less 1.

    The steps are those after the size's last change and before the next join.
    """
    found = []
    joined, changed = run["joined_s"], [change["at_s"] for change in run["changes"]]
    for index, size in enumerate(run["sizes"]):
        begun_s = max((at_s for at_s in changed if at_s < joined[index + 1]), default=0.0)
        begun_s = max(begun_s, joined[index] if index else 0.0)
        took = [end - start for start, end in run["steps"] if start >= begun_s]
        took = took[: sum(begun_s <= start < joined[index + 1] for start, _ in run["steps"])]
        error = median(took) / SLOWDOWN / size["modelled_s"] - 1 if took else float("nan")
        found.append(error)
    return found


@mpl.rc_context(STYLE)
def draw(path: Path, found: Mapping[str, Any]) -> None:
    """Throughput over time, a line a planner, broken where training paused."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots()
    for planner, run in found["trained"].items():
        colour, label = COLOURS[planner.split("-")[0]], NAMES[planner]
        steps = emulated_steps(run)
        for start, end in steps:
            rate = BATCH / (end - start)
            axes.plot([start, end], [rate, rate], color=colour, label=label)
            label = ""
        if planner == HEDDLE:
            wall = [at_s for step in run["steps"] for at_s in step]
            clock = [at_s for step in steps for at_s in step]
            joins = np.interp(run["joined_s"][:-1], wall, clock)
            for at_s, size in zip(joins, run["sizes"], strict=True):
                axes.axvline(at_s, lw=0.5, ls=":", color="#555555")
                axes.text(at_s, 0.2, f" {size['gpus']} GPUs", fontsize=6)
    axes.set(xlabel="seconds of the emulated clock; lines: joins of Heddle's job")
    axes.set(ylabel="samples/s, emulated", ylim=(0, None))
    axes.legend(fontsize=6)
    write(path, figure)


def text(found: Mapping[str, Any]) -> str:
    """The page: throughput of each size, pace, stalls, and who was left out."""
    trained = found["trained"]
    rows, stalls, lost = [], [], 0
    for planner, run in trained.items():
        errors = pace_errors(run)
        for size, (rate, last), error in zip(run["sizes"], rates(run), errors, strict=True):
            modelled = BATCH / size["modelled_s"]
            cells = (f"{rate:.1f}", f"{last:.1f}", f"{modelled:.1f}", f"{error:+.1%}")
            used, search = f"{size['used']} of {size['gpus']}", f"{size['search_s']:.2f} s"
            rows.append((NAMES[planner], used, search, *cells))
        stalls += [change["stall_s"] for change in run["changes"] if change["reason"] == "join"]
        lost += sum(change["reason"] == "loss" for change in run["changes"])
    head = ("planner", "GPUs used", "search", "with breaks", "last step", "modelled", "pace error")
    out = "\n".join(f"- {NAMES[name]}: {why}" for name, why in found["left_out"].items())
    early = "".join(
        f"The job of {NAMES[name]} ended after {run['sizes'][-1]['gpus']} GPUs: {run['ended']}.\n\n"
        for name, run in trained.items()
        if run["ended"]
    )
    pauses = f"{min(stalls):.2f} s to {max(stalls):.2f} s" if stalls else "none"
    return f"""One job a planner trained while the cluster grew. Processes, groups, state and its
movement are real. Devices are emulated, and nothing here was measured on a GPU.

- The model is a stand-in: as many blocks as GPT-Neo-2.7B, and narrow. Each device waits for the
  modelled time of GPT-Neo-2.7B, {SLOWDOWN:g} times over, so that one core carries all ranks.
- The emulated clock counts a step {SLOWDOWN:g} times shorter than it took, and a break as it was.
- A size lasts {HOLD_S:g} s of the wall, or until two steps of its plan are trained. The paper has
  five minutes a size. The batch is {BATCH} samples; the paper has 128.
- Plans are of searches before the job. It follows a plan as many emulated seconds after the join
  as its search took, and trains on with the old plan until then. The paper's job pauses.
- Each planner's first plan that fits is followed, also where it is slower than the old one.
- The ranks of new nodes start on the same core, and other work ran too. Steps beside their starts
  are late, which lowers the rates with breaks; the pace error is that of settled steps.
- A large pace error is likely this machine's: up to 19 ranks share its cores.

Breaks of joins lasted {pauses}. The machine starved ranks until they were taken for lost {lost}
times; such breaks count in the rates too.

![Throughput over time](growth-trained.svg)

Samples per second of the emulated clock:

{table(head, rows)}

{early}Left out, because a size has no plan that the job can train:

{out or "- nobody"}
"""
