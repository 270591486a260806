"""The picture of a plan as SVG: its pipelines over time.

A plan has one panel per kind of replica and one row per stage; the stage that sets the pace of its
replica, and the replica that sets the pace of the plan, are marked red.
Invariants: every bar is an instruction of the simulation; replicas of a template that take about as
long share a panel; many bars are drawn as pixels, and thousands of micro-batches as shares of the
time, so that a picture stays small however many run; equal plans give equal files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from heddle.cli.tables import memory_unit
from planner.cost.evaluate import PlanCost, ReplicaCost
from planner.cost.memory import usable_bytes
from planner.cost.simulation import Event, replica_seconds, simulate_replica
from planner.errors import InvalidRequest
from planner.model.workload import Workload
from planner.plans.plan import Plan, Stage
from planner.profiles.profile import Profile
from planner.wording import counted

MOST_PANELS = 12
ALIKE = 0.02  # replicas of a template that differ by less share a panel
WIDTH_IN, ROW_IN, GAP_IN, HEAD_IN = 12.8, 0.24, 0.75, 1.2
MANY_BARS = 2000  # from so many on they are pixels
MOST_ROUNDS = 2000  # of a replica that are drawn as bars
NUMBERED = 9  # up to that many micro-batches are numbered
GREY, RED, TINT = "#7b8794", "#c81e1e", "#fdecec"
TYPE_COLOURS = ("#2f6f9f", "#7a5195", "#2a9d8f", "#b5762a", "#8d6e63", "#5c6bc0", "#6b8e23")
BARS = {  # what comes later is drawn above what comes before it
    "message": "#c3ccd5",
    "forward": "#5b8db8",
    "backward": "#f0a04b",
    "gradient sum and optimizer": "#6aa56a",
}
WORK = ("forward", "backward")  # every other operation is one end of a message
RECOMPUTED = {"none": "", "selective": " ◐", "full": " ●"}
STYLE = {
    "svg.hashsalt": "heddle",  # else every file has other names in it
    "svg.fonttype": "none",  # text stays text
    "font.size": 8,
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def write(path: Path, figure: Figure) -> None:
    """Write a picture to a file.

    Raises:
        InvalidRequest: it cannot be written.
    """
    try:
        figure.savefig(path, format="svg", metadata={"Date": None}, dpi=200)
    except OSError as error:
        raise InvalidRequest(
            f"picture {path} cannot be written: {error.strerror}; name another file",
            code="Unwritable",
        ) from None


Kind = tuple[ReplicaCost, ...]  # replicas of a template that share a panel, the slowest first


def _kinds(cost: PlanCost) -> list[Kind]:
    """Replicas of one template are one kind if they take about as long."""
    found: dict[tuple[int, int], list[ReplicaCost]] = {}
    for replica, number in cost.distinct:
        for index in count():
            alike = found.setdefault((replica.template, index), [])
            seconds = [replica.pipeline_s, *(other.pipeline_s for other in alike)]
            if max(seconds) <= min(seconds) * (1 + ALIKE):
                alike += [replica] * number
                break
    return [
        tuple(sorted(alike, key=lambda replica: -replica.pipeline_s)) for alike in found.values()
    ]


def _heading(kind: Kind, micro_batch: int, last_s: float) -> str:
    """Which template, how many replicas, how many micro-batches they run, and until when."""
    spread = kind[0].pipeline_s / kind[-1].pipeline_s - 1
    equal = "" if spread < 5e-4 else f", alike within {spread:.1%}"
    least, most = (f(replica.micro_batches for replica in kind) for f in (min, max))
    rounds = counted(most, "micro-batch")
    if least != most:
        rounds = f"{least} to {most} micro-batches"
    return (
        f"template {kind[0].template}: {counted(len(kind), 'replica')}{equal}, {rounds} of "
        f"{micro_batch}, done after {_seconds(last_s)}"
    )


@mpl.rc_context(STYLE)
def draw_plan(path: Path, plan: Plan, cost: PlanCost, profile: Profile, workload: Workload) -> None:
    """The stages of a plan: GPUs and layers, what they do over time, seconds and memory.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    kinds = _kinds(cost)
    slowest = sorted(kinds, key=lambda kind: -kind[0].pipeline_s)[:MOST_PANELS]
    shown = [kind for kind in kinds if kind in slowest]
    played = [_events(kind[0]) for kind in shown]
    ready_s = max(replica_seconds(kind[0]) for kind in shown)
    step_s = ready_s + cost.sync_s + cost.optimizer_s + cost.broadcast_s
    rows = [len(kind[0].stages) for kind in shown]
    height_in = HEAD_IN + sum(ROW_IN * number + GAP_IN for number in rows)
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    left = len(kinds) - len(shown)
    figure.suptitle(_title(plan, cost, profile, step_s, left), ha="left", x=0.02, fontsize=9)
    panels = figure.subplots(
        len(shown), 3, squeeze=False, width_ratios=(7, 1.1, 1.1), height_ratios=rows
    )
    drawn = _Drawing(
        plan=plan,
        profile=profile,
        workload=workload,
        ready_s=ready_s,
        step_s=step_s,
        many=sum(map(len, played)) > MANY_BARS,
    )
    for (lanes, pace, memory), kind, events in zip(panels, shown, played, strict=True):
        drawn.lanes(lanes, kind, events, is_slowest=len(shown) > 1 and kind is slowest[0])
        drawn.pace(pace, kind[0])
        drawn.memory(memory, kind[0])
    legend = [Patch(color=colour, label=name) for name, colour in BARS.items()]
    legend.append(Patch(facecolor=TINT, edgecolor=RED, label="sets the pace"))
    figure.legend(handles=legend, loc="outside lower left", ncols=len(legend), frameon=False)
    write(path, figure)


def _events(replica: ReplicaCost) -> tuple[Event, ...]:
    """What a replica does, or nothing where bars would be far too thin to be seen."""
    return tuple(simulate_replica(replica)) if replica.rounds <= MOST_ROUNDS else ()


def _title(plan: Plan, cost: PlanCost, profile: Profile, step_s: float, left: int) -> str:
    replicas = sum(template.replicas for template in plan.templates)
    again = {stage.recompute for template in plan.templates for stage in template.stages}
    recomputed = "" if again == {"none"} else "; ● recomputes all, ◐ the attention core"
    undrawn = f"\n{counted(left, 'more kind')} of replica, all faster, not drawn" if left else ""
    return (
        f"{cost.throughput_samples_s:,.1f} samples/s on {counted(plan.gpus, 'GPU')}: "
        f"{counted(replicas, 'replica')} of {counted(len(plan.templates), 'template')}, iteration "
        f"{_seconds(cost.iteration_s)} by formula, {_seconds(step_s)} simulated\nprofile "
        f"{profile.origin}, links {profile.link_origin}; plan {plan.digest}{recomputed}{undrawn}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    """Scales that all panels of a picture share; `many` bars are drawn as pixels."""

    plan: Plan
    profile: Profile
    workload: Workload
    ready_s: float
    step_s: float
    many: bool

    def lanes(self, axes: Axes, kind: Kind, events: Sequence[Event], *, is_slowest: bool) -> None:
        """Schedule of each stage over time, with its GPUs and layers."""
        template = self.plan.templates[kind[0].template]
        last_s = replica_seconds(kind[0])
        heading = _heading(kind, template.micro_batch, last_s)
        if not events:
            heading += "; heights are shares of the time"
        axes.set_title(heading, loc="left", fontsize=8, fontweight="bold")
        if is_slowest:
            axes.set_title("the slowest", loc="right", fontsize=8, color=RED)
        for s in range(len(template.stages)):
            if events:
                self._bars(axes, s, [e for e in events if e.stage == s], kind[0].rounds)
            else:
                self._shares(axes, s, kind[0], last_s)
        end = [(self.ready_s, self.step_s - self.ready_s)]
        last = BARS["gradient sum and optimizer"]
        axes.broken_barh(end, (-0.4, len(template.stages) - 0.2), color=last)
        axes.set_xlim(0, self.step_s)
        axes.set_xlabel("s", loc="right", labelpad=-8)
        _rows(axes, kind[0], [_said(stage) for stage in template.stages])
        types = sorted({s.gpu_type for one in self.plan.templates for s in one.stages})
        for label, stage in zip(axes.get_yticklabels(), template.stages, strict=True):
            label.set_color(TYPE_COLOURS[types.index(stage.gpu_type) % len(TYPE_COLOURS)])

    def _bars(self, axes: Axes, s: int, events: Sequence[Event], micro_batches: int) -> None:
        """Schedule of one stage, with the micro-batch on every bar with room for it."""
        spans: dict[str, list[tuple[float, float]]] = {"message": [], "forward": [], "backward": []}
        for event in events:
            kind = event.operation if event.operation in WORK else "message"
            spans[kind].append((event.start_s, event.end_s - event.start_s))
        for name, bars in spans.items():
            axes.broken_barh(bars, (s - 0.35, 0.7), color=BARS[name], lw=0, rasterized=self.many)
        if micro_batches > NUMBERED:
            return
        for name in WORK:
            for number, (start_s, length_s) in enumerate(spans[name], 1):
                if length_s >= self.step_s / 80:
                    at_s = start_s + length_s / 2
                    axes.text(at_s, s, str(number), color="w", ha="center", va="center", size=7)

    def _shares(self, axes: Axes, s: int, replica: ReplicaCost, last_s: float) -> None:
        """Shares of the time that one stage sends, and works forward and backward."""
        stage, top = replica.stages[s], s - 0.35
        messages_s = 2 * (stage.to_previous_s + stage.to_next_s)
        for name, seconds in zip(
            BARS, (messages_s, stage.forward_s, stage.backward_s), strict=False
        ):
            height = 0.7 * replica.rounds * seconds / last_s
            axes.broken_barh([(0.0, last_s)], (top, height), color=BARS[name], lw=0)
            top += height

    def pace(self, axes: Axes, replica: ReplicaCost) -> None:
        """Seconds of a micro-batch, and the share of the iteration that each stage works."""
        longest_s, worst = max(stage.time_s for stage in replica.stages), _worst(replica)
        rows = []
        for s, stage in enumerate(replica.stages):
            work_s = replica.micro_batches * (stage.forward_s + stage.backward_s)
            said = f"{_seconds(stage.time_s)}, {work_s / self.step_s:.0%} busy"
            rows.append((stage.time_s / longest_s, said, s == worst))
        _column(axes, replica, "a micro-batch", rows)

    def memory(self, axes: Axes, replica: ReplicaCost) -> None:
        """Peak memory of one GPU of each stage, out of its capacity."""
        rows = []
        stages = self.plan.templates[replica.template].stages
        for stage, priced in zip(stages, replica.stages, strict=True):
            held = priced.peak_memory_bytes
            usable = usable_bytes(self.workload, self.profile.gpu_type(stage.gpu_type))
            unit, size = memory_unit(usable)
            said = f"{held / size:.3g} of {usable / size:.3g} {unit}"
            rows.append((held / usable, said, held > usable))
        _column(axes, replica, "memory at its peak", rows)


def _worst(replica: ReplicaCost) -> int | None:
    """The stage that sets the pace; None where there is one stage only."""
    seconds = [stage.time_s for stage in replica.stages]
    return seconds.index(max(seconds)) if len(seconds) > 1 else None


def _rows(axes: Axes, replica: ReplicaCost, labels: Sequence[str] = ()) -> None:
    """A row per stage, the first on top; the one that sets the pace on red ground."""
    worst = _worst(replica)
    if worst is not None:
        axes.axhspan(worst - 0.5, worst + 0.5, color=TINT, zorder=0)
    axes.set_ylim(len(replica.stages) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)


def _column(
    axes: Axes, replica: ReplicaCost, title: str, rows: Sequence[tuple[float, str, bool]]
) -> None:
    """A text and a thin bar per stage: (share of the whole, text, whether it is red)."""
    _rows(axes, replica)
    for s, (share, said, is_red) in enumerate(rows):
        axes.barh(s, min(share, 1), height=0.2, align="edge", color=RED if is_red else GREY)
        axes.text(0, s, said, va="bottom", fontsize=7, color=RED if is_red else "black")
    axes.set(xlim=(0, 1), xticks=())
    axes.set_title(title, loc="left", fontsize=8)
    axes.spines[:].set_visible(False)


def _said(stage: Stage) -> str:
    """GPU type, TP degree, tiling, recomputation and layers of a stage."""
    tiling = f" EP {stage.ep}" if stage.is_tiled else ""
    again = RECOMPUTED[stage.recompute]
    return f"{stage.gpu_type} TP {stage.tp}{tiling}{again}, {counted(stage.layers, 'layer')}"


def _seconds(seconds: float) -> str:
    """With three digits that matter, in the unit that suits."""
    if seconds == 0:
        return "0"
    if seconds >= 1000:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
