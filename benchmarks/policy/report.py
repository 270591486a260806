"""Write the figures of the learned planner beside their goals, and say what was left out.

Invariant: a ratio is to the reference of now, so a later and better reference lowers it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.evaluation.references import References
from benchmarks.evaluation.summary import Spread
from benchmarks.pages import header
from benchmarks.policy.anytime import METHODS, RIVAL
from benchmarks.policy.rollouts import ROLLOUTS
from benchmarks.tables import met, table
from planner.errors import PlanningError
from planner.policy.weights import find_policy
from planner.training.composition_sets import ListedComposition

Row = dict[str, Any]
Chosen = dict[str, Sequence[ListedComposition]]
# {(model, rollouts): (floor, stretch)} in per cent of the reference; and ms of the rollouts
GOALS = {
    ("llama3-8b", 16): (95.0, 98.0),
    ("qwen3-32b", 16): (89.0, 95.0),
    ("llama3-8b", 128): (97.0, None),
    ("qwen3-32b", 128): (92.0, None),
}
MOST_MS = {16: 20.0, 128: 60.0}
AHEAD_OF_RANDOM = ("qwen3-32b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3-like")
LEAST_AHEAD = 8.0  # points
MOST_BEHIND = 0.3  # per cent, of auto behind the better engine
MOST_LOST = 2.0  # points, on a changed profile
MOST_TRAINING_S = 600.0
EQUAL = 1e-9


def order(rows: Iterable[Row], key: str = "model") -> list[Any]:
    """Names in rows, each once, in their order."""
    return list(dict.fromkeys(row[key] for row in rows))


class Percents:
    """Per cent of the references of now."""

    def __init__(self, references: References, chosen: Chosen) -> None:
        """Of these compositions."""
        self._references = references
        self._listed = {(m, one.name): one for m, rows in chosen.items() for one in rows}

    def of(self, row: Row) -> float | None:
        """Of one row; None where nobody has a plan or the composition is not known any more."""
        one = self._listed.get((row["model"], row["case"]))
        if one is None:
            return None
        best = self._references.of(row["model"], one).throughput_samples_s
        return 100 * row["throughput_samples_s"] / best if best else None

    def all(self, rows: Iterable[Row]) -> list[float]:
        """Of many rows, those without a reference left out."""
        return [percent for row in rows for percent in (self.of(row),) if percent is not None]


def _first_words(why: object) -> str:
    """The finding of an error, without what to do."""
    return str(why).partition(";")[0]


def _rolled(rows: Sequence[Row], percents: Percents) -> str:
    lines = []
    for model in order(rows):
        for rollouts in ROLLOUTS:
            own = [row for row in rows if (row["model"], row["rollouts"]) == (model, rollouts)]
            policy = [r for r in own if r["method"] == "policy" and not r["note"]]
            found = percents.all(policy)
            drawn = percents.all(row for row in own if row["method"] == "random")
            if not found or not drawn:
                note = next((r["note"] for r in own if r["method"] == "policy"), "not measured")
                lines.append((model, rollouts, _first_words(note), *["-"] * 6))
                continue
            spread = Spread.of(found)
            ahead = spread.mean - statistics.fmean(drawn)
            floor, stretch = GOALS.get((model, rollouts), (None, None))
            goal = "" if floor is None else f" (goal {floor:g}: {met(spread.mean >= floor)}"
            goal += (
                "" if stretch is None else f", stretch {stretch:g}: {met(spread.mean >= stretch)}"
            )
            goal += ")" if goal else ""
            wanted = ""
            if model in AHEAD_OF_RANDOM:
                wanted = f" (goal {LEAST_AHEAD:g}: {met(ahead >= LEAST_AHEAD)})"
            alone = [1e3 * row["rollouts_s"] for row in policy]
            whole = [1e3 * row["answer_s"] for row in policy]
            median = statistics.median(alone)
            limit = f" (goal {MOST_MS[rollouts]:g}: {met(median <= MOST_MS[rollouts])})"
            lines.append(
                (
                    model,
                    rollouts,
                    f"{len(found)}",
                    f"{spread.mean:.2f} %{goal}",
                    f"{spread.p10:.2f} %",
                    f"{spread.worst:.2f} %",
                    f"{statistics.fmean(drawn):.2f} %, {ahead:+.1f} points{wanted}",
                    f"{median:.1f} / {max(alone):.1f}{limit}",
                    f"{statistics.median(whole):.0f} / {max(whole):.0f}",
                )
            )
    head = (
        *("model", "best of", "compositions", "policy, mean", "10th percentile", "worst"),
        *("`random`, mean", "rollouts ms, median / longest", "answer ms"),
    )
    return (
        f"{table(head, lines)}\n\nMeans of three seeds of sampling. The rollouts are the policy's "
        "own time; the answer adds the kernel's tables,\nthe placement and the exact price."
    )


def _by_case(rows: Sequence[Row], model: str, budget_s: float) -> list[dict[str, Row]]:
    """{method: its row} of every composition that all methods were measured on."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        if (row["model"], row["budget_s"]) == (model, budget_s):
            found.setdefault(row["case"], {})[row["method"]] = row
    return [case for case in found.values() if set(METHODS) <= set(case)]


def _gap(case: dict[str, Row]) -> float:
    """Of auto to the better engine, in per cent of that."""
    best = max(case[method]["throughput_samples_s"] for method in ("search", "columns"))
    return 100 * (case["auto"]["throughput_samples_s"] / best - 1) if best else 0.0


def _anytime(rows: Sequence[Row], percents: Percents) -> str:
    lines, behind = [], []
    for model in order(rows):
        for budget_s in sorted({row["budget_s"] for row in rows}):
            cases = _by_case(rows, model, budget_s)
            found = {m: percents.all(c[m] for c in cases) for m in METHODS}
            if not found["auto"]:
                continue
            mean = {method: statistics.fmean(values) for method, values in found.items()}
            engines = max(mean["search"], mean["columns"])
            gaps = [(_gap(c), f"{model} {c['auto']['case']} {budget_s:g} s") for c in cases]
            behind += [row for row in gaps if row[0] < -MOST_BEHIND]
            rivals = percents.all(c[RIVAL] for c in cases if RIVAL in c)
            against = "-"
            if rivals:
                reached = statistics.fmean(rivals)
                against = f"{reached:.2f} % ({met(mean['auto'] >= reached)})"
            least = min(gaps)[0]
            lines.append(
                (
                    model,
                    f"{budget_s:g} s",
                    len(cases),
                    f"{mean['auto']:.2f} % ({met(mean['auto'] >= engines - EQUAL)})",
                    f"{mean['search']:.2f} %",
                    f"{mean['columns']:.2f} %",
                    f"{least:+.2f} % ({met(least >= -MOST_BEHIND)})",
                    against,
                )
            )
    head = (
        *("model", "time", "compositions", "`auto`, mean", "`search`", "`columns`"),
        *("worst against the better engine", "rival, mean"),
    )
    text = table(head, lines)
    if behind:
        worst = "; ".join(f"{name} {gap:+.2f} %" for gap, name in sorted(behind)[:8])
        text += f"\n\nBehind by more than {MOST_BEHIND:g} %: {len(behind)}; most: {worst}."
    return (
        f"{text}\n\nMeans of three searches each, of different seeds. The rival has 200 random "
        "plans, every\nreplicated template of up to six stages slowest first, and local search for "
        "the rest of the time."
    )


def _noise(rows: Sequence[Row]) -> str:
    lines = []
    for model in order(rows):
        for rollouts in ROLLOUTS:
            shares: dict[bool, dict[str, float]] = {False: {}, True: {}}
            for row in rows:
                if (row["model"], row["rollouts"]) == (model, rollouts):
                    best = row["reference_samples_s"]
                    if best:
                        share = 100 * row["throughput_samples_s"] / best
                        shares[row["is_changed"]][row["case"]] = share
            both = shares[False].keys() & shares[True].keys()
            if not both:
                continue
            before, after = (
                statistics.fmean(shares[which][case] for case in both) for which in (False, True)
            )
            verdict = f"{before - after:+.2f} points ({met(before - after <= MOST_LOST)})"
            lines.append((model, rollouts, len(both), f"{before:.2f} %", f"{after:.2f} %", verdict))
    head = ("model", "best of", "compositions", "as trained on", "changed", "lost")
    return table(head, lines)


def _seeds(rows: Sequence[Row], percents: Percents) -> str:
    lines = []
    for row in rows:
        cells = []
        for rollouts in ROLLOUTS:
            found = row["found"][str(rollouts)].items()
            spread = Spread.of(
                percents.all(
                    {"model": row["model"], "case": case, "throughput_samples_s": samples_s}
                    for case, samples_s in found
                )
            )
            cells.append(f"{spread.mean:.2f} % ({spread.p10:.2f}, {spread.worst:.2f})")
        took = f"{row['clock_s']:.0f} s ({met(row['clock_s'] <= MOST_TRAINING_S)})"
        took += f", {row['processor_s']:.0f} s"
        lines.append((row["model"], row["seed"], *cells, f"{row['groups']:,}", took))
    head = ("model", "seed", *(f"best of {n}: mean (10th percentile, worst)" for n in ROLLOUTS))
    return table((*head, "groups", "clock, processor time"), lines)


def _cards(models: Iterable[str]) -> str:
    lines = []
    for model in models:
        try:
            card = find_policy(model).card
        except PlanningError as error:
            lines.append((model, _first_words(error), *["-"] * 5))
            continue
        clock_s = card.seconds["clock"]
        lines.append(
            (
                model,
                f"{card.model}, {', '.join(card.types)}",
                f"{card.groups:,}",
                card.num_compositions,
                card.seed,
                f"{clock_s:.0f} s ({met(clock_s <= MOST_TRAINING_S)}), "
                f"{card.seconds['processor']:.0f} s",
                card.commit[:9],
            )
        )
    head = ("model", "policy of", "groups", "compositions", "seed", "clock, processor time")
    return table((*head, "commit"), lines)


def _reduced(measured: Row, chosen: Chosen, references: References) -> str:
    said = []
    for part in ("rollouts", "anytime", "noise", "seeds"):
        rows = measured.get(part, [])
        if not rows:
            said.append(f"Not measured: {part}.")
        elif part != "seeds":
            for model in order(rows):
                cases = order([row for row in rows if row["model"] == model], "case")
                if len(cases) < len(chosen.get(model, ())):
                    said.append(f"`{part}`, {model}: {len(cases)} of {len(chosen[model])}.")
    for model, rows in chosen.items():
        own = [references.of(model, one) for one in rows]
        bare = sum(not one.searched for one in own)
        if bare:
            said.append(
                f"{bare} of {len(own)} references of {model} rest on the searches of reports "
                "alone; their percentages may be too high."
            )
    return "\n".join(f"- {line}" for line in said) or "Nothing."


def _in_clock(measured: Row) -> str:
    return ", in seconds of the processor" if measured.get("clock") == "processor" else ""


def report(measured: Row, chosen: Chosen, references: References, notes: Sequence[str]) -> str:
    """The result file."""
    percents = Percents(references, chosen)
    parts = [
        f"""# The learned planner

{header("make bench-policy", ["planner"], ",")}
shared with other work. Throughput is modelled, times are measured{_in_clock(measured)}.

All compositions are those of `profiles/compositions`, which no policy was trained on: the paper's
(written out where its text gives them, else reconstructed, as each line says), those of the
search's benchmark, the cluster that grows under the job (gpt-neo-2.7b), the demo's (tiny-llama). A
reference is the best plan ever found for a model on a composition; every plan measured here was
offered to it.

## What was reduced

{_reduced(measured, chosen, references)}""",
        f"## The policies\n\n{_cards(chosen)}",
    ]
    if measured.get("rollouts"):
        text = _rolled(measured["rollouts"], percents)
        parts.append(f"## The best of some rollouts\n\n{text}")
    if measured.get("anytime"):
        text = _anytime(measured["anytime"], percents)
        parts.append(f"## `auto` against the engines\n\n{text}")
    if measured.get("noise"):
        text = _noise(measured["noise"])
        parts.append(
            "## Another profile than the one trained on\n\nEvery number of the profile changed by "
            "up to 15 %, each by its own factor; on either profile the\nreference is the better of "
            f"a search and the policy.\n\n{text}"
        )
    if measured.get("seeds"):
        text = _seeds(measured["seeds"], percents)
        parts.append(
            "## Whole trainings of several seeds\n\nOn all unseen compositions. The policies that "
            "come with Heddle are the best by their validation,\nof these and of earlier ones."
            f"\n\n{text}"
        )
    if notes:
        parts.append("## Notes\n\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"
