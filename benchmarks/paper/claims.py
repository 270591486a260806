"""The claims of the paper's evaluation beside our figures: holds, does not hold, cannot be told.

Invariant: a verdict follows from stored results; a claim without results cannot be told here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.paper.cells import FIGURES, PEERS
from benchmarks.paper.planners import NAMES, NO_EP, RETILED
from benchmarks.paper.results import CellResults
from benchmarks.paper.tables import HEDDLE, RIVALS, SAME_PLAN, lead, table

Found = Mapping[str, Sequence[CellResults]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Our figure, and whether the claim holds by it; None: it cannot be told here."""

    figure: str
    holds: bool | None

    @property
    def word(self) -> str:
        """As the page says it."""
        return {True: "holds", False: "does not hold", None: "cannot be told here"}[self.holds]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the paper, where it stands, and how it is judged."""

    section: str
    says: str
    judge: Callable[[Found], Verdict]


ON_KUBELETS = "growth-kubelets"  # the page of the growing cluster there
UNKNOWN = Verdict("not all of its cells are planned", None)


def cells_in(found: Found, figure: str, models: Sequence[str] = ()) -> Sequence[CellResults]:
    """The cells of a figure, of some models or of all; none unless all of them are planned."""
    wanted = [one for one in FIGURES[figure] if not models or one[0] in models]
    cells = [one for one in found.get(figure, ()) if not models or one.cell.model in models]
    planned = [one for one in cells if one.of(HEDDLE) is not None]
    return planned if len(planned) == len(wanted) else ()


def _leads(cells: Sequence[CellResults]) -> list[float]:
    return [ahead for one in cells if (ahead := lead(one)) is not None]


def _range(leads: Sequence[float]) -> str:
    return f"{min(leads) - 1:+.1%} to {max(leads) - 1:+.1%}"


def first_in(figure: str, wanted: int) -> Callable[[Found], Verdict]:
    """Heddle is the best planner in at least so many cells of a figure."""

    def judge(found: Found) -> Verdict:
        leads = _leads(cells_in(found, figure))
        if not leads:
            return UNKNOWN
        first = sum(ahead >= 1 - SAME_PLAN for ahead in leads)
        return Verdict(f"first in {first} of {len(leads)} cells, {_range(leads)}", first >= wanted)

    return judge


def leads_of(
    figure: str, models: Sequence[str], least: float, most: float
) -> Callable[[Found], Verdict]:
    """Heddle's lead in the cells of some models reaches `least` everywhere and `most` somewhere."""

    def judge(found: Found) -> Verdict:
        cells = cells_in(found, figure, models)
        leads = _leads(cells)
        if not leads:
            return UNKNOWN
        holds = min(leads) - 1 >= least and max(leads) - 1 >= most
        return Verdict(f"{_range(leads)} in {len(leads)} cells", holds)

    return judge


def seconds_within(figures: Sequence[str], most: float) -> Callable[[Found], Verdict]:
    """Heddle's plans of the cells took no longer than that."""

    def judge(found: Found) -> Verdict:
        rows = [
            result.seconds
            for figure in figures
            for one in cells_in(found, figure)
            if (result := one.of(HEDDLE))
        ]
        if not rows:
            return UNKNOWN
        return Verdict(f"{min(rows):.1f} to {max(rows):.1f} s", max(rows) <= most)

    return judge


def cut_off(planner: str, figure: str) -> Callable[[Found], Verdict]:
    """A baseline ends by its budget in every cell of a figure."""

    def judge(found: Found) -> Verdict:
        rows = [r for one in cells_in(found, figure) if (r := one.of(planner))]
        if not rows:
            return UNKNOWN
        ended = sum(not row.finished for row in rows)
        budgets = sorted({row.budget_s for row in rows})
        given = " to ".join(f"{budget:g} s" for budget in (budgets[0], budgets[-1])[: len(budgets)])
        said = f"cut off in {ended} of {len(rows)} cells, at {given} of ours"
        return Verdict(said, ended == len(rows))

    return judge


def no_single_best(found: Found) -> Verdict:
    """No baseline is the best baseline of every cell."""
    cells = cells_in(found, "uniform")
    best = [one.best(RIVALS) for one in cells]
    names = sorted({NAMES[one.planner] for one in best if one})
    if not names:
        return UNKNOWN
    return Verdict(f"best baselines: {', '.join(names)}", len(names) > 1)


def expert_gain(model: str, *, wants_gain: bool) -> Callable[[Found], Verdict]:
    """Heddle with EP against Heddle without it."""

    def judge(found: Found) -> Verdict:
        cells = cells_in(found, "experts", (model,))
        pairs = [(one.of(HEDDLE), one.of(NO_EP)) for one in cells]
        known = [(a.samples_s, b.samples_s) for a, b in pairs if a and b]
        if not known:
            return UNKNOWN
        if any(not without for _, without in known):
            alone = sum(bool(ours) and not without for ours, without in known)
            return Verdict(f"EP alone has a plan in {alone} of {len(known)} cells", wants_gain)
        gains = [ours / without for ours, without in known]
        said = f"{min(gains):.2f} to {max(gains):.2f} times without EP"
        return Verdict(said, min(gains) > 1.01 if wants_gain else max(gains) < 1.01)

    return judge


def retiling_lifts(found: Found) -> Verdict:
    """Re-tiled baselines against themselves on Mixtral."""
    gains = [
        tiled.samples_s / plain.samples_s
        for one in cells_in(found, "experts", ("mixtral-8x7b",))
        for plain in one.results
        if (tiled := one.of(plain.planner + RETILED)) and plain.samples_s
    ]
    if not gains:
        return UNKNOWN
    return Verdict(f"{min(gains) - 1:+.1%} to {max(gains) - 1:+.1%}", min(gains) >= 1.33)


def only_with_experts_spread(found: Found) -> Verdict:
    """On DeepSeek-V3-like only planners that spread experts have a plan."""
    cells = cells_in(found, "experts", ("deepseek-v3-like",))
    if not cells:
        return UNKNOWN
    plain = {
        NAMES[r.planner]
        for one in cells
        for r in one.results
        if r.samples_s
        and (r.planner == NO_EP or (r.planner in RIVALS and RETILED not in r.planner))
    }
    ours = sum(bool(one.of(HEDDLE) and one.of(HEDDLE).samples_s) for one in cells)  # type: ignore[union-attr]
    others = ", ".join(sorted(plain)) or "nobody"
    return Verdict(
        f"Heddle has a plan in {ours} of {len(cells)} cells; without EP {others} has one",
        ours == len(cells) and not plain,
    )


def never_falls(found: Found) -> Verdict:
    """Of all planners Heddle alone is never slower after a join."""
    cells = cells_in(found, "growth")
    planners = [p for p in (*PEERS, HEDDLE) if all(one.of(p) for one in cells)]
    if not cells or HEDDLE not in planners:
        return UNKNOWN
    rising = []
    for planner in planners:
        rates = [result.samples_s for one in cells if (result := one.of(planner))]
        if all(later >= before for before, later in pairwise(rates)):
            rising.append(NAMES[planner])
    return Verdict(f"never falls: {', '.join(rising) or 'nobody'}", rising == [NAMES[HEDDLE]])


def drops_a5000(found: Found) -> Verdict:
    """On 19 GPUs Heddle leaves out the A5000."""
    last = [one for one in found.get("growth", ()) if one.cell.listed.name == "grow-19"]
    ours = last[0].of(HEDDLE) if last else None
    if ours is None:
        return UNKNOWN
    used = ", ".join(f"{count} {kind}" for kind, count in ours.gpus_by_type.items())
    return Verdict(f"it uses {used}", not ours.gpus_by_type.get("a5000", 0))


CLAIMS = (
    Claim("3.1", "no baseline is the best for every model and size", no_single_best),
    Claim("6.1", "Heddle has the best plan on 11 of 12 uniform cells", first_in("uniform", 11)),
    Claim(
        "6.1",
        "on uniform nodes it leads LLaMA-3-8B by 5.1 % to 22.9 %",
        leads_of("uniform", ("llama3-8b",), 0.051, 0.229),
    ),
    Claim(
        "6.1",
        "on uniform nodes it leads Qwen3-32B by -0.4 % (one cell) to 43.5 %",
        leads_of("uniform", ("qwen3-32b",), -0.004, 0.435),
    ),
    Claim(
        "6.1",
        "on LS1 to LS5 it leads LLaMA-3-8B by 22.4 % to 84.5 %",
        leads_of("non-uniform", ("llama3-8b",), 0.224, 0.845),
    ),
    Claim(
        "6.1",
        "on LS1 to LS5 it leads Qwen3-32B by 21.6 % to 72.9 %",
        leads_of("non-uniform", ("qwen3-32b",), 0.216, 0.729),
    ),
    Claim("6.1", "it plans in at most 8.4 s", seconds_within(("uniform", "non-uniform"), 8.4)),
    Claim(
        "6.1", "Metis spends its whole budget on every uniform cell", cut_off("metis", "uniform")
    ),
    Claim("6.2", "as the cluster grows, only Heddle's throughput never falls", never_falls),
    Claim(
        "6.2",
        "it leads at every size by 19.9 % to 69.1 %",
        leads_of("growth", ("gpt-neo-2.7b",), 0.199, 0.691),
    ),
    Claim("6.2", "on 19 GPUs it leaves out the A5000", drops_a5000),
    Claim(
        "6.3",
        "Mixtral: EP makes Heddle 1.06 to 1.21 times faster",
        expert_gain("mixtral-8x7b", wants_gain=True),
    ),
    Claim("6.3", "Mixtral: re-tiling lifts the baselines by 33 % to 49 %", retiling_lifts),
    Claim(
        "6.3",
        "Qwen3-30B-A3B: EP makes no difference",
        expert_gain("qwen3-30b-a3b", wants_gain=False),
    ),
    Claim("6.3", "DeepSeek-V3-like: only spread experts fit", only_with_experts_spread),
    Claim(
        "6.3",
        "with four GPU types it is first on all five compositions, by 1.6 % to 14.3 %",
        leads_of("four-types", ("llama3-8b",), 0.016, 0.143),
    ),
    Claim(
        "6.3",
        "on Qwen3-64B it leads by 0.2 %, 3.7 % and 20.9 %, with the policy of Qwen3-32B",
        leads_of("large-model", ("qwen3-64b",), 0.002, 0.209),
    ),
)


def _not_run(beside: Sequence[str]) -> str:
    """Parts of the paper's evaluation that did not run."""
    cells = """No cell had 600 s (`--budget-s 600`), which is what
its peers had in some; searches that 20 s cut off say so."""
    if ON_KUBELETS in beside:
        return f"One part of the paper's evaluation did not run. {cells}"
    growth = "The growing cluster ran on emulated\ndevices, not on the emulated kubelets."
    return f"Two parts of the paper's evaluation did not run. {cells} {growth}"


def claims_page(
    found: Found, beside: Sequence[str] = (), further: Sequence[tuple[str, str, Verdict]] = ()
) -> str:
    """The list of claims by section, and which pages there are."""
    judged = [(claim.section, claim.says, claim.judge(found)) for claim in CLAIMS]
    rows = [
        (section, says, verdict.figure, verdict.word)
        for section, says, verdict in sorted((*judged, *further), key=lambda row: row[0])
    ]
    pages = "\n".join(f"- [{name}]({name}.md)" for name in (*found, *beside))
    return f"""Throughput is modelled by Heddle's evaluator on modelled profiles; the paper's is
modelled by its own. So a lead here need not be the paper's: profiles, evaluator and budgets differ.
A verdict is about the claim in our figures alone. Heddle is the one at 3 s on one core; a lead
is over the best baseline in the better of its own placement and Heddle's.

{table(("section", "the paper", "here", "verdict"), rows)}

{_not_run(beside)}

{pages}
- [the cost model beside measurements of others](../cost_validation.md)
- [the stall of a change on emulated devices](../stall_emulated.md)
"""
