"""The structure sweep: random pipeline structures on 512 GPUs, and where each planner lands.

A structure is one template: a depth, and a GPU type with a TP degree for each stage, all drawn
evenly; its fill, replicas and price are those of Heddle's estimator.
Source: Heddle, section 3.1 (the figure of pipeline structures).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.baselines.mcts import price_last
from benchmarks.evaluation.references import expanded
from benchmarks.paper.cells import DENSE, cells_of
from benchmarks.paper.picture import COLOURS
from benchmarks.paper.planners import NAMES
from benchmarks.paper.results import CellResults
from benchmarks.paper.store import FOLDER, read_cell
from benchmarks.paper.tables import table
from heddle.cli.pictures import STYLE, write
from planner.estimator.build_tables import pricing_of
from planner.estimator.jit import jit
from planner.estimator.objective import SearchLimits
from planner.estimator.tables import Floats, Ints, Tables
from planner.estimator.top_k import TopK, new_top_k
from planner.estimator.unplaced_plan import UnplacedPlan, new_plan
from planner.estimator.workspace import Workspace, new_workspace

STRUCTURES = 200_000
DEEPEST = 24
POINTS = 2000  # that are drawn
COMPOSITION = "three-512"


@jit
def price_all(
    t: Tables,
    limits: SearchLimits,
    depths: Ints,
    options: Ints,
    seconds: Floats,
    plan: UnplacedPlan,
    work: Workspace,
    top_k: TopK,
) -> None:
    """Seconds of each structure, as often as it fits; infinite where it does not."""
    for n in range(len(depths)):
        plan.number[0] = 1
        plan.depth[0] = depths[n]
        for s in range(depths[n]):
            plan.options[0, s] = options[n, s]
        seconds[n] = price_last(t, limits, plan, work, top_k)


def measure(structures: int = STRUCTURES, seed: int = 0) -> dict[str, Any]:
    """By model: samples per second at percentiles, and some points, of random structures."""
    found = {}
    for model in DENSE:
        cell = next(
            c for c in cells_of("uniform") if (c.model, c.listed.name) == (model, COMPOSITION)
        )
        question = cell.question()
        pricing = pricing_of(question.workload, question.composition, question.profile)
        assert pricing is not None
        random = np.random.default_rng(seed)
        depths = random.integers(1, DEEPEST + 1, structures)
        options = random.integers(0, len(pricing.options), (structures, DEEPEST))
        seconds = np.zeros(structures)
        limits = SearchLimits(DEEPEST, 1, 0, math.inf, math.inf)
        work, plan, top_k = new_workspace(pricing.tables), new_plan(), new_top_k()
        price_all(pricing.tables, limits, depths, options, seconds, plan, work, top_k)
        rates = question.workload.global_batch / seconds
        fitting = np.flatnonzero(rates > 0)
        shown = random.choice(fitting, min(POINTS, len(fitting)), replace=False)
        found[model] = {
            "structures": structures,
            "fitting": len(fitting),
            "percentiles": [float(np.percentile(rates[fitting], p)) for p in range(101)],
            "points": [[int(depths[n]), round(float(rates[n]), 2)] for n in sorted(shown)],
        }
    return found


def landings(cell: CellResults, percentiles: list[float], folder: Path = FOLDER) -> list[Any]:
    """(planner, depth, samples per second, share of the structures that are slower) by planner."""
    rows, found = read_cell(cell.cell, folder), []
    for one in cell.results:
        counted = rows[one.planner]["counted"]
        if counted is None:
            continue
        depth = None
        if counted["plan"] is not None:
            plan = expanded(counted["plan"])
            depths = [len(t.stages) for t in plan.templates for _ in range(t.replicas)]
            depth = float(np.median(depths))
        slower = np.searchsorted(percentiles, one.samples_s) / 100
        found.append((one.planner, depth, one.samples_s, min(1.0, float(slower))))
    return found


@mpl.rc_context(STYLE)
def draw(path: Path, stored: dict[str, Any], cells: list[CellResults], folder: Path) -> None:
    """Throughput over depth: random structures grey, planners coloured."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    panels = figure.subplots(1, len(cells), squeeze=False)[0]
    for axes, cell in zip(panels, cells, strict=True):
        data = stored[cell.cell.model]
        depths, rates = zip(*data["points"], strict=True)
        axes.scatter(depths, rates, s=3, color="#c3ccd5", rasterized=True)
        for planner, depth, rate, _ in landings(cell, data["percentiles"], folder):
            if depth is None:
                axes.axhline(rate, lw=0.8, color=COLOURS[planner], label=NAMES[planner])
            elif not planner.startswith("heddle") or planner == "heddle-3":
                colour = COLOURS[planner.split("-")[0]]
                axes.scatter([depth], [rate], s=30, color=colour, label=NAMES[planner])
        axes.set(xlabel="median depth", ylabel="samples/s, modelled", title=cell.cell.model)
        axes.legend(fontsize=6)
    write(path, figure)


def text(stored: dict[str, Any], cells: list[CellResults], folder: Path) -> str:
    """Where each planner lands."""
    rows = []
    for cell in cells:
        data = stored[cell.cell.model]
        for planner, depth, rate, share in landings(cell, data["percentiles"], folder):
            said = "DP differs by stage" if depth is None else f"{depth:g}"
            rows.append((cell.cell.model, NAMES[planner], said, f"{rate:.1f}", f"{share:.0%}"))
    head = ("model", "planner", "median depth", "samples/s", "random structures that are slower")
    drawn = "; ".join(
        f"{model}: {data['fitting']:,} of {data['structures']:,} fit, the best reaches "
        f"{data['percentiles'][-1]:.1f} samples/s"
        for model, data in stored.items()
    )
    return f"""Random structures on {COMPOSITION}, one template each: {drawn}.

![Random structures and planners](sweep.svg)

{table(head, rows)}
"""
