"""The picture of an evaluation: how good each method's best plan is after how many plans.

Source: Heddle, section 6.4 (the figure of search efficiency).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import cycle

import matplotlib as mpl
from matplotlib.figure import Figure

from planner.evaluation.run import EvaluatedComposition
from planner.evaluation.summary import mean_curve

COLOURS = ("#c81e1e", "#2f6f9f", "#2a9d8f", "#b5762a", "#7a5195", "#8d6e63")
DASHES = ("-", "--", "-.", ":")
_FIXED_IDS = {"svg.hashsalt": "heddle"}  # equal evaluations give equal files


def curves_svg(rows: Sequence[EvaluatedComposition], model: str) -> str:
    """Per cent of the reference over evaluations, a line a method, as SVG."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    styles = zip(cycle(COLOURS), cycle(DASHES), strict=False)
    for trial, (colour, dash) in zip(rows[0].trials, styles, strict=False):
        points = mean_curve(rows, trial.method)
        if not points:
            continue
        at, percent = zip(*points, strict=True)
        axes.step(at, percent, dash, where="post", color=colour, label=trial.method)
        axes.plot(at, percent, ".", color=colour, markersize=5)
    axes.set_xscale("log")
    axes.set_xlabel("plans priced")
    axes.set_ylabel("best so far, % of the reference")
    axes.grid(visible=True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    what = rows[0].listed.name if len(rows) == 1 else f"mean of {len(rows)} compositions"
    axes.set_title(f"{model}, {what}", fontsize=10)
    text = io.StringIO()
    with mpl.rc_context(_FIXED_IDS):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
