"""The picture of a run on one time axis: what happened, plans, throughput and loss, as one SVG.

Invariant: every panel has the same seconds since the first step; a pause is as wide as it took.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl

mpl.use("svg")
import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heddle.train.recorder import Recorder
from heddle.train.script import Event
from planner.plans.plan import Plan
from planner.plans.ranks import RankMap
from planner.wording import counted

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2")
PAUSE = "#bbbbbb"
Kind = Literal["join", "refusal", "drain", "kill"]
MARKERS: Mapping[Kind, tuple[str, str]] = {
    "join": ("^", "#2c7a2c"),
    "refusal": ("o", "#555555"),
    "drain": ("v", "#b36b00"),
    "kill": ("X", "#b00000"),
}
LEVELS = 3  # heights of the labels, so that those of neighbours do not overlap


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One thing that happened.

    Attributes:
        at_s: seconds since the first step.
    """

    at_s: float
    kind: Kind
    label: str


def draw(result: Mapping[str, Any], recorder: Recorder, path: Path) -> None:
    """Write the SVG: what happened when, who holds which layers, samples/s, and the loss."""
    figure = Figure(figsize=(10, 9), layout="constrained")
    panels = figure.subplots(4, 1, sharex=True, height_ratios=(0.8, 3, 1.2, 1.4))
    happened, plans, throughput, loss = panels
    starts_s = [s.start_s for e in result["epochs"] for s in recorder.steps_of(e["epoch"])]
    begin_s = min(starts_s, default=0.0)  # nothing was trained: empty panels
    found = marks(recorder, begin_s)
    _draw_marks(happened, found)
    _draw_plans(plans, result, recorder, begin_s)
    _draw_throughput(throughput, result, recorder, begin_s)
    _draw_loss(loss, result, recorder, begin_s)
    for axes in panels:
        for left, right in pauses(result, recorder, begin_s):
            axes.axvspan(left, right, color=PAUSE, linewidth=0.8, zorder=0, gid="pause")
        for mark in found:
            colour = MARKERS[mark.kind][1]
            axes.axvline(mark.at_s, color=colour, linewidth=0.6, linestyle=":", zorder=0)
    loss.set_xlabel("seconds since the first step; grey: training pauses")
    figure.savefig(path, format="svg", metadata={"Date": None})


def marks(recorder: Recorder, begin_s: float) -> tuple[Mark, ...]:
    """Events of the nodes, and each plan that was kept, in order of time."""
    found = [
        Mark(at_s=each.at_s - begin_s, kind=each.event.verb, label=_label(each.event))
        for each in recorder.happened
    ]
    for refused in recorder.refusals.values():
        label = f"plan kept, gain {refused.gain_percent:+.1f} %"
        found.append(Mark(at_s=refused.at_s - begin_s, kind="refusal", label=label))
    return tuple(sorted(found, key=lambda mark: mark.at_s))


def _label(event: Event) -> str:
    if event.node is not None:
        return f"{event.name} joins, {counted(event.node.gpus, 'GPU')}"
    return f"{event.name} is {'drained' if event.verb == 'drain' else 'killed'}"


def pauses(
    result: Mapping[str, Any], recorder: Recorder, begin_s: float
) -> Iterator[tuple[float, float]]:
    """(start, end) of each pause: from the last step of an epoch to the first of the next."""
    for before, after in itertools.pairwise(result["epochs"]):
        end_s = _span_s(recorder, before["epoch"], begin_s)[1]
        yield end_s, _span_s(recorder, after["epoch"], begin_s)[0]


def _span_s(recorder: Recorder, epoch: int, begin_s: float) -> tuple[float, float]:
    steps = recorder.steps_of(epoch)
    return steps[0].start_s - begin_s, steps[-1].end_s - begin_s


def _draw_marks(axes: Axes, found: tuple[Mark, ...]) -> None:
    for index, mark in enumerate(found):
        marker, colour = MARKERS[mark.kind]
        height = -(index % LEVELS)
        axes.plot(mark.at_s, height, marker, color=colour, markersize=6, gid=f"mark {mark.kind}")
        axes.text(mark.at_s, height, f"   {mark.label}", va="center", fontsize=7, color=colour)
    axes.set_ylim(-LEVELS + 0.4, 0.6)
    axes.set_yticks([])
    axes.set_title("Events of the nodes, and plans that are kept", fontsize=9)


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
    axes.set_title("Throughput; dots: measured, dashes: predicted by event simulation", fontsize=9)


def _draw_loss(axes: Axes, result: Mapping[str, Any], recorder: Recorder, begin_s: float) -> None:
    """Both losses of a step stand where this job ended the step."""
    ends_s = {
        step.step: step.end_s - begin_s
        for epoch in result["epochs"]
        for step in recorder.steps_of(epoch["epoch"])
    }
    for key, label, colour, width, alpha in (
        ("reference_losses", "one process of plain torch", "#e15759", 3.0, 0.4),
        ("losses", "this job", "black", 0.9, 1.0),
    ):
        steps = [step for step in range(len(result[key])) if step in ends_s]
        times, losses = [ends_s[step] for step in steps], [result[key][step] for step in steps]
        axes.plot(times, losses, label=label, color=colour, linewidth=width, alpha=alpha)
    axes.set_ylabel("loss")
    axes.set_title("Loss of each step", fontsize=9)
    axes.legend(fontsize=8)
