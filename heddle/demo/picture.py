"""The picture of a run: plans over time, throughput and loss, as one SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heddle.train.recorder import Recorder
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2")


def draw(result: Mapping[str, Any], recorder: Recorder, path: Path) -> None:
    """Write the SVG: who holds which layers when, samples/s, and the loss with its reference."""
    figure = Figure(figsize=(10, 8), layout="constrained")
    plans, throughput, loss = figure.subplots(3, 1, height_ratios=(3, 1.2, 1.4))
    throughput.sharex(plans)
    starts_s = [s.start_s for e in result["epochs"] for s in recorder.steps_of(e["epoch"])]
    begin_s = min(starts_s, default=0.0)  # nothing was trained: three empty panels
    _draw_plans(plans, result, recorder, begin_s)
    _draw_throughput(throughput, result, recorder, begin_s)
    _draw_loss(loss, result)
    figure.savefig(path, format="svg", metadata={"Date": None})


def _span_s(recorder: Recorder, epoch: int, begin_s: float) -> tuple[float, float]:
    steps = recorder.steps_of(epoch)
    return steps[0].start_s - begin_s, steps[-1].end_s - begin_s


def _draw_plans(axes: Axes, result: Mapping[str, Any], recorder: Recorder, begin_s: float) -> None:
    rows = sorted(
        {
            (n["name"], gpu)
            for e in result["epochs"]
            for n in e["composition"]
            for gpu in range(n["gpus"])
        }
    )
    for index, epoch in enumerate(result["epochs"]):
        left, right = _span_s(recorder, epoch["epoch"], begin_s)
        for seat in RankMap.of(Plan.from_json(epoch["plan"])).seats:
            row = rows.index((seat.node, seat.gpu))
            colour = COLOURS[seat.pipeline.template_index % len(COLOURS)]
            axes.barh(row, right - left, left=left, height=0.86, color=colour, alpha=0.75)
            text = f"{seat.layers[0]}-{seat.layers[-1]}"
            text += f" tp{seat.tp}" if seat.tp > 1 else ""
            axes.text((left + right) / 2, row, text, ha="center", va="center", fontsize=7)
        axes.axvline(left, color="black", linewidth=0.6)
        height = len(rows) - 0.4 + 0.3 * (index % 2)  # titles of short epochs would overlap
        axes.text(left, height, f" {_title(epoch)}", fontsize=7)
    axes.set_yticks(range(len(rows)), [f"{node} gpu {gpu}" for node, gpu in rows], fontsize=7)
    axes.set_ylim(-0.6, len(rows) + 0.2)
    axes.set_title("Layers that each emulated GPU holds; colour: template of the plan", fontsize=9)


def _title(epoch: Mapping[str, Any]) -> str:
    """The epoch, why it began, and for how long training paused before it."""
    change = epoch["reconfiguration"]
    pause = f", pause {change['stall_s']:.2f} s" if change and change["stall_s"] else ""
    return f"epoch {epoch['epoch']}: {epoch['reason']}{pause}"


def _draw_throughput(
    axes: Axes, result: Mapping[str, Any], recorder: Recorder, begin_s: float
) -> None:
    for epoch in result["epochs"]:
        steps = recorder.steps_of(epoch["epoch"])
        batch = sum(
            template["micro_batch"] * sum(template["micro_batches"])
            for template in epoch["plan"]["templates"]
        )
        left, right = _span_s(recorder, epoch["epoch"], begin_s)
        predicted = batch / epoch["predicted_step_s"]
        axes.hlines(predicted, left, right, color="black", linestyle="--", linewidth=1)
        times = [step.start_s - begin_s for step in steps[1:]]
        rates = [batch / (b.start_s - a.start_s) for a, b in itertools.pairwise(steps)]
        axes.plot(times, rates, ".", color="#4e79a7", markersize=3)
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since the first step")
    axes.set_title("Throughput; dots: measured, dashes: predicted by event simulation", fontsize=9)


def _draw_loss(axes: Axes, result: Mapping[str, Any]) -> None:
    axes.plot(
        result["reference_losses"],
        color="#e15759",
        linewidth=3,
        alpha=0.4,
        label="one process of plain torch",
    )
    axes.plot(result["losses"], color="black", linewidth=0.9, label="this job")
    for epoch in result["epochs"][1:]:
        axes.axvline(epoch["first_step"], color="black", linewidth=0.5, linestyle=":")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.set_title("Loss of each step", fontsize=9)
    axes.legend(fontsize=8)
