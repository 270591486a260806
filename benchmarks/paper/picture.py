"""Bars of a figure: one panel a group of cells, one bar a planner, its search time above."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.paper.planners import NAMES
from benchmarks.paper.results import CellResults
from heddle.cli.pictures import STYLE, write

COLOURS = {
    "amp": "#b5762a",
    "espresso": "#8d6e63",
    "hexiscale": "#2a9d8f",
    "metis": "#7a5195",
    "sailor": "#2f6f9f",
    "heddle": "#c81e1e",
}
WIDTH_IN, PANEL_IN = 12.0, 2.6


@mpl.rc_context(STYLE)
def draw_bars(path: Path, panels: Sequence[tuple[str, Sequence[CellResults]]]) -> None:
    """Modelled throughput of each planner's first plan that fits, over the best of its cell.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    figure = Figure(figsize=(WIDTH_IN, PANEL_IN * len(panels)), layout="constrained")
    rows = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    labelled: dict[str, object] = {}
    for axes, (title, cells) in zip(rows, panels, strict=True):
        axes.set_title(title, loc="left", fontsize=9)
        ticks = []
        at = 0.0
        for one in cells:
            most = max((result.most_samples_s for result in one.results), default=0.0) or 1.0
            first = at
            for result in one.results:
                colour = COLOURS[result.planner.split("-")[0]]
                hatch = {"heddle-0.5": "///", "heddle-same": "..."}.get(result.planner, "")
                hatch = hatch or ("xxx" if result.planner.endswith(("-moe", "-no-ep")) else "")
                bar = axes.bar(
                    at, result.samples_s / most, 0.9, color=colour, hatch=hatch, edgecolor="white"
                )
                labelled.setdefault(NAMES[result.planner], bar)
                if result.replaced_samples_s > result.samples_s:
                    axes.bar(
                        at, result.replaced_samples_s / most, 0.9, fill=False, edgecolor=colour
                    )
                said = f"{result.seconds:.1f}" if result.samples_s else "none"
                axes.text(at, result.most_samples_s / most + 0.02, said, ha="center", fontsize=5)
                at += 1
            ticks.append(((first + at - 1) / 2, f"{one.cell.listed.name}\n{most:.0f} samples/s"))
            at += 1
        axes.set_xticks([x for x, _ in ticks], [text for _, text in ticks])
        axes.set_ylim(0, 1.15)
        axes.set_ylabel("of the best")
    figure.legend(
        list(labelled.values()), list(labelled), loc="outside lower center", ncols=8, frameon=False
    )
    write(path, figure)


MARKERS = {128: "o", 256: "s", 512: "^"}


@mpl.rc_context(STYLE)
def draw_quality(path: Path, cells: Sequence[CellResults]) -> None:
    """Throughput over search time on three GPU types, a colour a planner and a marker a size.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    models = list(dict.fromkeys(one.cell.model for one in cells))
    figure = Figure(figsize=(WIDTH_IN, 3.2), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        labelled: set[str] = set()
        for one in cells:
            ours = one.of("heddle-3")
            marker = MARKERS.get(one.cell.gpus)
            is_three = one.cell.listed.name.startswith("three-")
            if one.cell.model != model or not is_three or ours is None or marker is None:
                continue
            for result in one.results:
                label = NAMES[result.planner]
                axes.plot(
                    max(result.seconds, 0.01),
                    result.samples_s / ours.samples_s,
                    marker,
                    color=COLOURS[result.planner.split("-")[0]],
                    fillstyle="none" if result.planner in ("heddle-0.5", "heddle-same") else "full",
                    label=None if label in labelled else label,
                )
                labelled.add(label)
        axes.set(xscale="log", xlabel="search, s", ylabel="of Heddle at 3 s", title=model)
        axes.grid(visible=True, alpha=0.3)
        if labelled:
            axes.legend(fontsize=6)
    write(path, figure)
