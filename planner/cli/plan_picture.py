"""A picture of a plan: its pipelines stage by stage, with types, layers and load over time.

One panel per kind of replica, one row per stage; the stage that sets the pace of its replica, and
the replica that sets the pace of the plan, are marked red.
Invariants: every bar is an instruction of the simulation; equal ones in a row become one dashed
line and those thinner than a quarter of a pixel are left out, so that a picture stays small however
many micro-batches run.  Replicas of a template that take about as long share a panel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count, pairwise

from planner.cost.evaluate import Price, ReplicaPrice, StagePrice
from planner.cost.simulation import TimelineEntry, simulate_replica
from planner.plans.plan import Plan, Stage
from planner.profiles.profile import Profile
from planner.wording import counted

MOST_PANELS = 12
ALIKE = 0.02  # replicas of a template that differ by less share a panel
WIDTH, ROW, BAR = 1280, 22, 14
LABEL, LANE, LANE_WIDTH = 24, 240, 700
PACE, BUSY, MEMORY, COLUMN = 962, 1056, 1130, 76
TOP, GAP = 96, 54  # above the first panel; above each panel, for its heading
FINE = 10  # lanes are drawn in tenths of a pixel
SAME = 0.5  # instructions that differ by less, in tenths of a pixel, are drawn as equal
THIN = 2.5  # bars below this, in tenths of a pixel, nobody sees
NUMBERED = 9  # up to that many micro-batches are numbered
INK, GREY, RED, TINT = "#1f2933", "#7b8794", "#c81e1e", "#fdecec"
TYPE_COLOURS = ("#2f6f9f", "#7a5195", "#2a9d8f", "#b5762a", "#8d6e63", "#5c6bc0", "#6b8e23")
COLOURS = {
    "forward": "#5b8db8",
    "backward": "#f0a04b",
    "message": "#c3ccd5",
    "gradient sum and optimizer": "#6aa56a",
}
RECOMPUTED = {"none": "", "selective": " ◐", "full": " ●"}
LANES = (  # class of the bar, and the operation that it is
    ("M", "send_activation"),
    ("M", "receive_activation"),
    ("M", "send_gradient"),
    ("M", "receive_gradient"),
    ("F", "forward"),
    ("B", "backward"),
)
STYLE = (
    "text{fill:#1f2933}.g{fill:#7b8794}.r{fill:#c81e1e;font-weight:bold}.b{font-weight:bold}"
    ".e{text-anchor:end}.n{fill:#fff;font-size:10px}path{fill:none;stroke-width:14}"
    ".t{stroke:#e4e7eb;stroke-width:1}"
    + "".join(f".{n[0].upper()}{{stroke:{COLOURS[n]}}}" for n in ("forward", "backward", "message"))
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Replicas of a template that share a panel, and the slowest of them, which is drawn."""

    slowest: ReplicaPrice
    alike: tuple[ReplicaPrice, ...]

    def __str__(self) -> str:
        seconds = [replica.pipeline_s for replica in self.alike]
        spread = max(seconds) / min(seconds) - 1
        equal = "" if spread == 0 else f", alike within {spread:.1%}"
        return counted(len(self.alike), "replica") + equal

    @property
    def rounds(self) -> str:
        """How many micro-batches they run."""
        least, most = (f(r.micro_batches for r in self.alike) for f in (min, max))
        return counted(most, "micro-batch") if least == most else f"{least} to {most} micro-batches"


def _kinds(price: Price) -> list[_Kind]:
    """Replicas of one template are one kind if they take about as long."""
    found: dict[tuple[int, int], list[ReplicaPrice]] = {}
    for replica, number in price.distinct:
        for index in count():
            alike = found.setdefault((replica.template, index), [])
            seconds = [replica.pipeline_s, *(other.pipeline_s for other in alike)]
            if max(seconds) <= min(seconds) * (1 + ALIKE):
                alike += [replica] * number
                break
    return [
        _Kind(max(alike, key=lambda replica: replica.pipeline_s), tuple(alike))
        for alike in found.values()
    ]


def plan_svg(plan: Plan, price: Price, profile: Profile) -> str:
    """The picture as SVG.

    Args:
        plan: whose stages are named.
        price: of the plan.
        profile: says how much memory a GPU type has.
    """
    kinds = _kinds(price)
    slowest = max(kind.slowest.pipeline_s for kind in kinds)
    shown = sorted(kinds, key=lambda kind: -kind.slowest.pipeline_s)[:MOST_PANELS]
    shown = [kind for kind in kinds if kind in shown]
    played = [simulate_replica(kind.slowest) for kind in shown]
    ready_s = max(entry.end_s for entries in played for entry in entries)
    step_s = ready_s + price.sync_s + price.optimizer_s
    types = sorted({s.gpu_type for template in plan.templates for s in template.stages})
    colours = {t: TYPE_COLOURS[i % len(TYPE_COLOURS)] for i, t in enumerate(types)}
    drawn = _Drawing(plan, profile, colours, step_s, ready_s)
    y = TOP
    parts: list[str] = []
    for kind, entries in zip(shown, played, strict=True):
        paces = kind.slowest.pipeline_s == slowest
        parts += drawn.panel(y, kind, entries, sets_the_pace=paces and len(shown) > 1)
        y += GAP + ROW * len(kind.slowest.stages)
    if len(kinds) > len(shown):
        more = f"{len(kinds) - len(shown)} more kinds of replica, all faster, are not drawn"
        parts.append(_text(LABEL, y + 24, more, "g"))
        y += 24
    return "\n".join([*_head(plan, price, profile, y + 24, step_s), *parts, "</svg>", ""])


def _head(plan: Plan, price: Price, profile: Profile, height: int, step_s: float) -> Iterator[str]:
    """Title, legend and time axis."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="Helvetica, Arial, DejaVu Sans, sans-serif" '
        f'font-size="12"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>'
    )
    yield (
        f'<text x="{LABEL}" y="32" font-size="19" class="b">'
        f"{price.throughput_samples_s:,.1f} samples/s on {counted(plan.gpus, 'GPU')}</text>"
    )
    replicas = sum(template.replicas for template in plan.templates)
    again = {stage.recompute for template in plan.templates for stage in template.stages}
    legend = "" if again == {"none"} else "; ● recomputes all, ◐ the attention core"
    yield _text(
        LABEL,
        52,
        f"{counted(replicas, 'replica')} of {counted(len(plan.templates), 'template')}, iteration "
        f"{_seconds(price.iteration_s)} by formula, {_seconds(step_s)} simulated; profile "
        f"{profile.origin}, links {profile.link_origin}; plan {plan.digest}{legend}",
        "g",
    )
    x = LANE
    for name, colour in COLOURS.items():
        yield f'<rect x="{x}" y="70" width="14" height="10" fill="{colour}"/>'
        yield _text(x + 19, 79, name)
        x += 45 + 6 * len(name)
    yield f'<rect x="{x}" y="70" width="14" height="10" fill="{TINT}" stroke="{RED}"/>'
    yield _text(x + 19, 79, "sets the pace")
    yield _text(LABEL, 79, "stage", "g") + _text(LANE - 12, 79, "layers", "g e")
    yield _text(PACE, 79, "micro-batch", "g") + _text(BUSY, 79, "busy", "g")
    yield _text(MEMORY, 79, "memory at its peak", "g")


class _Drawing:
    """What all panels of a picture share."""

    def __init__(
        self, plan: Plan, profile: Profile, colours: dict[str, str], step_s: float, ready_s: float
    ) -> None:
        self._plan, self._profile, self._colours = plan, profile, colours
        self._step_s, self._ready_s = step_s, ready_s
        self._scale = LANE_WIDTH * FINE / step_s

    def panel(
        self,
        y: int,
        kind: _Kind,
        entries: Sequence[TimelineEntry],
        *,
        sets_the_pace: bool,
    ) -> Iterator[str]:
        """The heading of one kind of replica, then a row per stage."""
        replica = kind.slowest
        template = self._plan.templates[replica.template]
        top, height = y + GAP - 12, ROW * len(replica.stages)
        end_s = max(entry.end_s for entry in entries)
        slowest = '<tspan class="r" dx="10">the slowest</tspan>' if sets_the_pace else ""
        yield (
            f'<text x="{LABEL}" y="{top - 24}"><tspan class="b">template {replica.template}</tspan>'
            f'<tspan dx="10">{kind}</tspan><tspan class="g" dx="10">{kind.rounds} of '
            f"{template.micro_batch}, done after {_seconds(end_s)}</tspan>"
            f"{slowest}</text>"
        )
        yield from self._axis(top, height)
        worst = max(range(len(replica.stages)), key=lambda s: replica.stages[s].time_s)
        for s, (stage, priced) in enumerate(zip(template.stages, replica.stages, strict=True)):
            mine = [entry for entry in entries if entry.stage == s]
            row = top + s * ROW
            if s == worst and len(replica.stages) > 1:
                yield f'<rect x="12" y="{row}" width="{WIDTH - 24}" height="{ROW}" fill="{TINT}"/>'
                yield f'<rect x="12" y="{row}" width="4" height="{ROW}" fill="{RED}"/>'
            yield from self._label(row, s, stage)
            yield from self._lane(row, mine, replica.micro_batches)
            paces = s == worst and len(replica.stages) > 1
            yield from self._load(row, stage, priced, replica, marked=paces)
        left = LANE + self._ready_s * self._scale / FINE
        yield (
            f'<rect x="{left:.1f}" y="{top + 3}" width="{LANE + LANE_WIDTH - left:.1f}" '
            f'height="{height - 6}" fill="{COLOURS["gradient sum and optimizer"]}"/>'
        )

    def _axis(self, top: int, height: int) -> Iterator[str]:
        """A line and a number at every round time."""
        tick_s, ticks = _round(self._step_s / 7), []
        for index in range(int(self._step_s / tick_s) + 1):
            x = LANE + index * tick_s * self._scale / FINE
            ticks.append(f"M{x:.1f} {top - 4}v{height + 4}")
            yield f'<text x="{x:.1f}" y="{top - 8}" font-size="10" class="g">' + (
                f"{_seconds(index * tick_s)}</text>"
            )
        yield f'<path class="t" d="{"".join(ticks)}"/>'

    def _label(self, y: int, index: int, stage: Stage) -> Iterator[str]:
        """The GPU type in its colour, TP degree, tiling, and the layers as a bar."""
        tiling = f" EP {stage.ep}" if stage.is_tiled else ""
        again = RECOMPUTED[stage.recompute]
        colour = self._colours[stage.gpu_type]
        yield f'<rect x="{LABEL}" y="{y + 5}" width="12" height="12" rx="2" fill="{colour}"/>'
        yield (
            f'<text x="{LABEL + 18}" y="{y + 15}"><title>{_said(index, stage)}</title>'
            f"{escape(stage.gpu_type)} TP {stage.tp}{tiling}{again}</text>"
        )
        yield _text(LANE - 12, y + 15, f"{stage.layers}", "e")
        wide = 34 * stage.layers / max(s.layers for t in self._plan.templates for s in t.stages)
        yield (
            f'<rect x="{LANE - 34 - wide:.1f}" y="{y + 7}" width="{wide:.1f}" height="8" '
            f'fill="{colour}" opacity=".45"/>'
        )

    def _lane(self, y: int, entries: Sequence[TimelineEntry], rounds: int) -> Iterator[str]:
        """What a stage does over time."""
        yield f'<g transform="translate({LANE} {y + ROW // 2}) scale({1 / FINE} 1)">'
        for kind, operation in LANES:
            spans = [
                (entry.start_s * self._scale, (entry.end_s - entry.start_s) * self._scale)
                for entry in entries
                if entry.instruction.operation == operation
            ]
            yield from _bars(kind, [span for span in spans if span[1] >= THIN])
        yield "</g>"
        if rounds <= NUMBERED:
            yield from self._numbers(y, entries)

    def _numbers(self, y: int, entries: Sequence[TimelineEntry]) -> Iterator[str]:
        """The number of its micro-batch on every bar that has room for it."""
        for operation in ("forward", "backward"):
            mine = [
                (entry.start_s + entry.end_s) / 2 * self._scale / FINE
                for entry in entries
                if entry.instruction.operation == operation
            ]
            wide = [e.end_s - e.start_s for e in entries if e.instruction.operation == operation]
            if not wide or min(wide) * self._scale / FINE < 9:
                continue
            at = " ".join(f"{LANE + x - 3:.0f}" for x in mine)
            digits = "".join(str(n + 1) for n in range(len(mine)))
            yield f'<text x="{at}" y="{y + 15}" class="n">{digits}</text>'

    def _load(
        self, y: int, stage: Stage, priced: StagePrice, replica: ReplicaPrice, *, marked: bool
    ) -> Iterator[str]:
        """Seconds a micro-batch, share of the iteration that it works, memory."""
        worst_s = max(other.time_s for other in replica.stages)
        share = priced.time_s / worst_s
        fill = RED if marked else GREY
        yield (
            f'<rect x="{PACE}" y="{y + 17}" width="{COLUMN * share:.1f}" height="2.5" '
            f'fill="{fill}"/>'
        )
        yield _text(PACE, y + 14, _seconds(priced.time_s), "r" if marked else "")
        work_s = priced.forward_s + priced.backward_s
        yield _text(BUSY, y + 14, f"{replica.micro_batches * work_s / self._step_s:.0%}")
        usable = self._profile.gpu_type(stage.gpu_type).usable_bytes
        full = priced.peak_memory_bytes / usable
        held_by = self._colours[stage.gpu_type] if full <= 1 else RED
        yield (
            f'<rect x="{MEMORY}" y="{y + 17}" width="{COLUMN}" height="2.5" fill="#e4e7eb"/>'
            f'<rect x="{MEMORY}" y="{y + 17}" width="{COLUMN * min(1.0, full):.1f}" height="2.5" '
            f'fill="{held_by}"/>'
        )
        unit, size = ("GB", 1e9) if usable >= 1e9 else ("MB", 1e6)
        held = f"{priced.peak_memory_bytes / size:.3g} of {usable / size:.3g} {unit}"
        yield _text(MEMORY, y + 14, held, "" if full <= 1 else "r")


def _bars(kind: str, spans: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Bars from (start, length) in tenths of a pixel; a run of equal ones is one dashed line."""
    single: list[str] = []
    index = 0
    while index < len(spans):
        stop = _run(spans, index)
        start, length = spans[index]
        if stop - index < 4:
            single.append(f"M{start:.0f} 0h{max(length, 1):.0f}")
            index += 1
            continue
        last = spans[stop - 1]
        period = (last[0] - start) / (stop - 1 - index)
        gap = max(period - length, 0.0)
        yield (
            f'<path class="{kind}" d="M{start:.0f} 0H{last[0] + last[1]:.0f}" '
            f'stroke-dasharray="{length:.2f} {gap:.2f}"/>'
        )
        index = stop
    if single:
        yield f'<path class="{kind}" d="{"".join(single)}"/>'


def _run(spans: Sequence[tuple[float, float]], first: int) -> int:
    """The end of the run of bars of equal length and distance that starts here."""
    stop = first + 1
    period = None
    for (before, _), (start, length) in pairwise(spans[first:]):
        if abs(length - spans[first][1]) > SAME:
            break
        if period is not None and abs(start - before - period) > SAME:
            break
        period = start - before
        stop += 1
    return stop


def _said(index: int, stage: Stage) -> str:
    again = f", {stage.recompute} recomputation" if stage.recompute != "none" else ""
    tiling = f", EP {stage.ep} x ETP {stage.expert_tp}" if stage.is_tiled else ""
    return escape(
        f"stage {index}: {stage.layers} layers on {stage.tp} {stage.gpu_type}{tiling}{again}"
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y}"{style}>{escape(text)}</text>'


def _seconds(seconds: float) -> str:
    """With three digits that matter, in the unit that suits."""
    if seconds == 0:
        return "0"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _round(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... that is not below."""
    power: float = 10.0 ** (len(str(int(1 / value))) * -1) if value < 1 else 1.0
    while True:
        for digit in (1, 2, 5):
            if power * digit >= value:
                return power * digit
        power *= 10
