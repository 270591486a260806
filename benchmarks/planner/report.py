"""Write the figures beside their goals, and say what was left out.

Invariant: a ratio is to the reference of now, so a later and better reference lowers it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.pages import header
from benchmarks.planner.compositions import USUAL_GPUS, Case
from benchmarks.planner.quality import BUDGETS_S
from benchmarks.planner.references import ENGINES, SECONDS, SEEDS, BenchmarkReferences
from benchmarks.tables import met, table

Row = dict[str, Any]
WORST = 8
HUGE = "4,096 GPUs"
# (model, budget, figure, least per cent of the reference)
GOALS = (
    ("llama3-8b", 0.05, "mean", 85.0),
    ("qwen3-32b", 0.05, "mean", 75.0),
    ("llama3-8b", 0.5, "10th percentile", 99.0),
    ("qwen3-32b", 1.0, "mean", 98.0),
    ("qwen3-32b", 3.0, "10th percentile", 98.5),
    ("qwen3-30b-a3b", 3.0, "mean", 97.0),
)
RATE_GOALS = (150_000, 40_000, None, None)


def ratio(row: Row, references: BenchmarkReferences, known: dict[str, Case]) -> float:
    """Per cent of the reference."""
    best = references.of(row["model"], known[row["case"]]).throughput_samples_s
    return 100 * row["throughput_samples_s"] / best if best else 0.0


def _figures(values: Sequence[float]) -> dict[str, float]:
    return {
        "mean": statistics.mean(values),
        "10th percentile": float(np.percentile(values, 10)),
        "worst": min(values),
    }


def _rates(found: Row) -> str:
    rows = []
    for one, goal in zip(found["rates"], RATE_GOALS, strict=True):
        split = "min-max" if one["per_size"] == 1 else f"Pareto (up to {one['per_size']} a size)"
        reached = one["templates_per_s"]
        against = "-" if goal is None else f"{goal:,} ({met(reached >= goal)})"
        rows.append(
            (
                one["model"],
                split,
                len(one["sizes"]),
                f"{reached:,.0f}",
                f"{one['slowest_per_s']:,.0f}",
                against,
            )
        )
    head = ("model", "split", "micro-batch sizes", "templates/s, median", "slowest", "goal")
    load, cold = found["load"], found["compile"]
    return f"""{table(head, rows)}

A template of depth 8 on three types, its replicas as many as fit, filled and priced alone by a
jitted loop on one core; drawn at random, only those that fit in memory, tables warm.

Apart from that, in a process of its own: import {load["import_s"]:.2f} s, loading the compiled
kernel {load["kernel_s"]:.2f} s, compiling it where no cache is kept {cold["kernel_s"]:.0f} s."""


def _quality(found: list[Row], references: BenchmarkReferences, known: dict[str, Case]) -> str:
    groups: dict[tuple[str, float], list[float]] = {}
    own: set[str] = set()  # whose references are of nothing but these searches
    for row in found:
        is_huge = known[row["case"]].composition.gpus > USUAL_GPUS
        name = f"{row['model']}, {HUGE}" if is_huge else row["model"]
        if not references.of(row["model"], known[row["case"]]).searched:
            own.add(name)
        groups.setdefault((name, row["budget_s"]), []).append(ratio(row, references, known))

    def _judged(name: str, is_met: bool) -> str:
        return "not judged: no other search" if is_met and name in own else met(is_met)

    goals = {(model, budget, which): least for model, budget, which, least in GOALS}
    rows = []
    for (name, budget_s), values in groups.items():
        figures = _figures(values)
        cells = []
        for which, value in figures.items():
            least = goals.get((name, budget_s, which))
            note = "" if least is None else f" (goal {least:g}: {_judged(name, value >= least)})"
            cells.append(f"{value:.2f} %{note}")
        if HUGE in name and budget_s == 2.0:
            cells[0] += f" (goal 98: {_judged(name, figures['mean'] >= 98)})"
        rows.append((name, f"{budget_s:g} s", len(values), *cells))
    return table(("model", "budget", "compositions", "mean", "10th percentile", "worst"), rows)


def _worst(found: list[Row], references: BenchmarkReferences, known: dict[str, Case]) -> str:
    late = [row for row in found if row["budget_s"] >= 0.5]
    late.sort(key=lambda row: ratio(row, references, known))
    rows = []
    for row in late[:WORST]:
        case = known[row["case"]]
        best = references.of(row["model"], case)
        rows.append(
            (
                row["model"],
                f"{case.name} `{case.text}`",
                case.batch,
                f"{row['budget_s']:g} s",
                f"{ratio(row, references, known):.2f} %",
                row["last_step"],
                best.found_by,
            )
        )
    head = ("model", "composition", "batch", "budget", "of reference", "last gain", "reference by")
    return table(head, rows)


def _overshoot(found: list[Row]) -> str:
    rows = []
    for budget_s in sorted({row["budget_s"] for row in found}):
        took = [row["planning_s"] for row in found if row["budget_s"] == budget_s]
        worst = max(
            (row for row in found if row["budget_s"] == budget_s), key=lambda r: r["planning_s"]
        )
        rows.append(
            (
                f"{budget_s:g} s",
                f"{statistics.median(took):.3f} s",
                f"{max(took):.3f} s",
                f"{worst['model']} {worst['case']}",
            )
        )
    return table(("budget", "median planning time", "longest", "of"), rows)


def _simpler(measured: Row, references: BenchmarkReferences) -> str:
    at_3 = {
        (row["model"], row["case"]): row["throughput_samples_s"]
        for row in measured["quality"]
        if row["budget_s"] == 3.0
    }
    rows, behind = [], []
    way = "one template"
    for model in dict.fromkeys(row["model"] for row in measured["simpler"]):
        ratios = []
        for row in measured["simpler"]:
            key = (row["model"], row["case"])
            if (row["model"], row["way"]) != (model, way) or key not in at_3:
                continue
            other = row["throughput_samples_s"]
            ratios.append(at_3[key] / other if other else 1.0)
            if ratios[-1] < 1 - 1e-12:
                behind.append((*key, way, f"{100 * ratios[-1]:.2f} %"))
        if ratios:
            better = [f"{100 * (r - 1):+.2f} %" for r in (statistics.mean(ratios), min(ratios))]
            is_met = min(ratios) >= 1 - 1e-12
            rows.append((way, model, len(ratios), *better, met(is_met)))
    head = ("against", "model", "compositions", "planner ahead, mean", "least", "never below")
    text = table(head, rows)
    if behind:
        named = "; ".join(f"{m} {c}: {share} of {way}" for m, c, way, share in behind)
        text += f"\n\nBehind: {named}."
    return text


def _bound(found: list[Row]) -> str:
    rows = []
    for model in dict.fromkeys(row["model"] for row in found):
        own = [row for row in found if row["model"] == model]
        gaps = [row["gap_percent"] for row in own]
        figures = (statistics.mean(gaps), statistics.median(gaps), min(gaps), max(gaps))
        longest = max(row["seconds"] for row in own)
        rows.append((model, len(own), *(f"{gap:.1f} %" for gap in figures), f"{longest:.1f} s"))
    head = ("model", "compositions", "mean gap", "median", "least", "widest", "longest proof")
    named = sorted(found, key=lambda row: -row["gap_percent"])[:4]
    widest = "; ".join(
        f"{row['model']} {row['case']} {row['gap_percent']:.1f} % (M {row['micro_batches']})"
        for row in named
    )
    return table(head, rows) + f"\n\nWidest: {widest}."


def _process(found: list[Row]) -> str:
    rows = []
    for model in dict.fromkeys(row["model"] for row in found):
        own = [row for row in found if row["model"] == model]
        wall_s = [row["wall_s"] for row in own]
        processor_s = statistics.median(row["processor_s"] for row in own)
        peak = max(row["peak_bytes"] for row in own) / 1e6
        torch = any(row["torch"] for row in own)
        rows.append(
            (
                model,
                len(own),
                f"{statistics.median(wall_s):.2f} / {max(wall_s):.2f} s ({met(max(wall_s) <= 2)})",
                f"{processor_s:.2f} s",
                f"{peak:.0f} MB ({met(peak < 500)})",
                f"{'yes' if torch else 'no'} ({met(not torch)})",
            )
        )
    head = (
        "model",
        "runs",
        "wall time, median / longest (goal 2 s)",
        "processor time",
        "peak memory (goal < 500 MB)",
        "torch imported",
    )
    return table(head, rows) + (
        f"\n\nOn `{found[0]['composition']}`, batch 2048; modules have their bytecode, as after\n"
        "`make setup`."
    )


def _part_of(part: str, have: set[tuple[str, str]], left: set[tuple[str, str]]) -> list[str]:
    """The shorter of what was measured and what was not; nothing where nothing is left."""
    if not left:
        return []
    done, rest = (_listed(" ".join(p) for p in chosen) for chosen in (have, left))
    if len(left) < len(have):
        return [f"`{part}` was not measured for {rest}."]
    return [f"`{part}` was measured for {done} alone."]


def _reduced(measured: Row, references: BenchmarkReferences, known: dict[str, Case]) -> str:
    """Sentence on the rows that were left out."""
    rows = measured.get("quality", [])
    said = []
    used = {row["case"] for row in rows}
    if len(used) < len(known):
        said.append(f"{len(used)} of {len(known)} compositions were measured: {_listed(used)}.")
    for model in dict.fromkeys(row["model"] for row in rows):
        own = {row["case"] for row in rows if row["model"] == model}
        if own != used:
            said.append(f"Of these, {model} ran on {len(own)}: {_listed(own)}.")
    asked = {row["budget_s"] for row in rows}
    if not set(BUDGETS_S) <= asked:
        left = ", ".join(f"{b:g} s" for b in BUDGETS_S if b not in asked)
        said.append(f"Not measured: the budgets {left}.")
    full = {f"{e}, seed {s}, {SECONDS:g} s" for e in ENGINES for s in SEEDS}
    pairs = {(row["model"], row["case"]) for row in rows}
    short = [p for p in pairs if not full <= set(references.of(p[0], known[p[1]]).searched)]
    if short:
        tried = Counter(s for m, c in short for s in references.of(m, known[c]).searched)
        names = "; ".join(f"{name} ({n} of {len(short)})" for name, n in sorted(tried.items()))
        said.append(
            f"{len(short)} of {len(pairs)} references had less than the whole search "
            f"({' and '.join(ENGINES)}, {len(SEEDS)} seeds, {SECONDS:g} s each). They rest on "
            f"{f'{names} and ' if names else ''}the searches of this report, so their percentages "
            "may be too high."
        )
        bare = [p for p in short if not references.of(p[0], known[p[1]]).searched]
        if bare and tried:
            named = _listed(" ".join(p) for p in bare)
            said.append(f"Nothing but the searches of this report stands behind {named}.")
    for part in ("rates", "simpler", "bound", "process"):
        if part not in measured:
            said.append(f"Not measured: {part}.")
        elif part in ("simpler", "bound"):
            have = {(row["model"], row["case"]) for row in measured[part]}
            left = {p for p in pairs - have if known[p[1]].composition.gpus <= USUAL_GPUS}
            said += _part_of(part, have, left)
    return "\n".join(f"- {line}" for line in said) or "Nothing."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def report(
    measured: Row, references: BenchmarkReferences, chosen: Sequence[Case], notes: Sequence[str]
) -> str:
    """The result file."""
    known = {case.name: case for case in chosen}
    seconds = (
        "Seconds of searches and proofs are the processor's own,\nof one thread: as long as they "
        "take where nothing else runs."
        if measured.get("clock") == "processor"
        else "Seconds are those of a clock on the wall."
    )
    parts = [
        f"""# The planner's speed and quality

{header("make bench-planner", ["planner"], ",")}
shared with other work. {seconds}
Throughput is modelled, times are measured; no learned policy takes part.

A reference is the best plan ever found for a model on a composition
(`benchmarks/planner/references.json`); every plan measured here was offered to it, so no
figure is above 100 %.

## What was reduced

{_reduced(measured, references, known)}"""
    ]
    if "rates" in measured:
        parts.append(f"## Pricing\n\n{_rates(measured['rates'])}")
    if "quality" in measured:
        rows = measured["quality"]
        parts.append(
            f"## Quality in per cent of the reference\n\n{_quality(rows, references, known)}"
        )
        parts.append(f"### Worst cases of 0.5 s and more\n\n{_worst(rows, references, known)}")
        parts.append(f"### Time over budget\n\n{_overshoot(rows)}")
    if "simpler" in measured:
        parts.append(
            "## The planner at 3 s against simpler ways\n\n"
            "Each with 500,000 annealing steps at the same depth: one replicated template, and "
            "plans whose\npipelines are each of one GPU type.\n\n" + _simpler(measured, references)
        )
    if "bound" in measured:
        text = _bound(measured["bound"])
        parts.append(f"## Gap of the reference plans to the proven bound\n\n{text}")
    if "process" in measured:
        parts.append(
            f"## `heddle plan --budget-s 0.5` as a process\n\n{_process(measured['process'])}"
        )
    if notes:
        parts.append("## Notes\n\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"
