"""The picture of an evaluation: how good each method is after how many plans.

Source: Heddle, section 6.4 (the figure of search efficiency).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.evaluation.run import EvaluatedComposition
from benchmarks.evaluation.summary import mean_curve
from heddle.cli.pictures import STYLE, write

CURVE_COLOURS = ("#c81e1e", "#2f6f9f", "#2a9d8f", "#b5762a", "#7a5195", "#8d6e63")
DASHES = ("-", "--", "-.", ":")


@mpl.rc_context(STYLE)
def draw_curves(path: Path, rows: Sequence[EvaluatedComposition], model: str) -> None:
    """Per cent of the reference over evaluations, a line a method.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    styles = zip(cycle(CURVE_COLOURS), cycle(DASHES), strict=False)
    for trial, (colour, dash) in zip(rows[0].trials, styles, strict=False):
        points = mean_curve(rows, trial.method)
        if points:
            at, percent = zip(*points, strict=True)
            axes.step(at, percent, dash, where="post", color=colour, label=trial.method)
            axes.plot(at, percent, ".", color=colour, markersize=5)
    axes.set(xscale="log", xlabel="plans evaluated", ylabel="best so far, % of the reference")
    axes.grid(visible=True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    what = rows[0].listed.name if len(rows) == 1 else f"mean of {len(rows)} compositions"
    axes.set_title(f"{model}, {what}", fontsize=10)
    write(path, figure)
