"""The pages of docs/results/paper, drawn from stored plans alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import PAGES, header
from benchmarks.paper import by_formula
from benchmarks.paper.cells import FIGURES, cells_of
from benchmarks.paper.claims import Verdict, claims_page
from benchmarks.paper.further_claims import FURTHER_CLAIMS
from benchmarks.paper.measured import (
    ablations,
    efficiency,
    growth,
    growth_on_kubelets,
    learning,
    reconfiguration,
    sweep,
    table1,
)
from benchmarks.paper.picture import draw_bars, draw_quality
from benchmarks.paper.planners import NAMES, SAME
from benchmarks.paper.results import CellResults, Result, results_of
from benchmarks.paper.store import FOLDER, read_measured
from benchmarks.paper.tables import (
    as_json,
    behind,
    details,
    lead,
    leads_by_best_plan,
    never_first,
    throughputs,
)
from planner.errors import InvalidRequest
from planner.wording import reason_of

MEASURES = ("planner", "benchmarks/baselines", "benchmarks/paper")
FOLDER_OF_PAGES = PAGES / "paper"
BESIDE = {
    "table1": "Table 1 from capability tests",
    "sweep": "Random structures, and where each planner lands",
    "efficiency": "Search efficiency",
    "ablations": "What each part of the training earns",
    "growth-trained": "A cluster that grows from 3 to 19 GPUs, trained on emulated devices",
    "growth-kubelets": "A cluster that grows from 3 to 19 GPUs, on emulated kubelets",
    "reconfiguration": "Reconfiguration breakdown on emulated devices",
}
WITHOUT_PICTURE = ("table1", "ablations", "reconfiguration")
LEARNING = "flat-rl"  # what stands on the page of search efficiency too
TITLES = {
    "uniform": "Uniform nodes: two and three GPU types",
    "non-uniform": "Nodes of one and four GPUs: LS1 to LS5",
    "growth": "A cluster that grows from 3 to 19 GPUs, planned anew at each join",
    "four-types": "Four GPU types",
    "large-model": "Qwen3-64B with the policy of Qwen3-32B",
    "experts": "Models with experts",
}

NOTES = {
    "uniform": "![Quality over planning time](quality.svg)\n\nThroughput over that of Heddle at "
    "3 s, by search time, on 128, 256 and 512 GPUs of three types.\n",
    "growth": "Each planner plans every size anew. Nothing was trained for this page: throughput "
    "is modelled, and there are no breaks.\n",
    "experts": "A -MoE bar is the baseline's own plan, its experts tiled by Heddle's rule; where "
    "none fits, the first of the same search that fits once tiled.\n",
}


def draw(folder: Path = FOLDER_OF_PAGES, plans: Path = FOLDER) -> list[Path]:
    """Write all pages whose plans are stored; returns them.

    Raises:
        InvalidRequest: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(
            f"the pages cannot be written to {folder}: {reason_of(error)}; give another folder",
            field="output",
            code="Unwritable",
        ) from None
    found: dict[str, tuple[CellResults, ...]] = {}
    written = []
    for figure in FIGURES:
        cells = tuple(results_of(cell, plans) for cell in cells_of(figure))
        cells = tuple(one for one in cells if one.results)
        if cells:
            found[figure] = cells
            written += _figure(folder, plans, figure, cells)
    also = _beside(folder, plans, found.get("uniform", ()))
    beside = [path.stem for path in also if path.suffix == ".md"]
    written += also
    readme = folder / "README.md"
    readme.write_text(
        _top("The paper's evaluation, regenerated") + claims_page(found, beside, _further(plans))
    )
    return [*written, readme]


def _beside(folder: Path, plans: Path, uniform: Sequence[CellResults]) -> list[Path]:
    """The pages of what was measured beside the cells."""
    written = []
    for name, title in BESIDE.items():
        stored = read_measured(name, plans)
        if stored is None:
            continue
        found, picture = stored["found"], folder / f"{name}.svg"
        if name == "table1":
            body = table1.text(found, uniform)
        elif name == "sweep":
            cells = [one for one in uniform if one.cell.listed.name == sweep.COMPOSITION]
            if {one.cell.model for one in cells} != set(found):
                continue
            sweep.draw(picture, found, cells, plans)
            body = sweep.text(found, cells, plans)
        elif name == "ablations":
            body = ablations.text(found)
        elif name == "growth-trained":
            growth.draw(picture, found)
            body = growth.text(found)
        elif name == "growth-kubelets":
            growth.draw(picture, found)
            body = growth_on_kubelets.text(found, stored["load"])
        elif name == "reconfiguration":
            body = reconfiguration.text(found)
        else:
            body = _efficiency(picture, found, read_measured(LEARNING, plans))
        page = folder / f"{name}.md"
        when = f"Measured on {stored['date']} by commit {stored['commit']}.\n\n"
        page.write_text(_top(title) + when + body, encoding="utf-8")
        written += [page, *([picture] if name not in WITHOUT_PICTURE else [])]
    return written


def _efficiency(picture: Path, found: dict[str, Any], learned: dict[str, Any] | None) -> str:
    """The page of search efficiency, with the policies that learn where they are stored."""
    more = learned["found"]["curves"] if learned else {}
    efficiency.draw(picture, found | more)
    body = efficiency.text(found | more)
    if learned:
        body += f"\n{learning.text(learned['found'])}"
        body += f"They were measured on {learned['date']} by commit {learned['commit']}.\n"
    return body


def _further(plans: Path) -> list[tuple[str, str, Verdict]]:
    """Claims that stand on no cell, judged by what is stored beside the cells."""
    names = (*BESIDE, LEARNING)
    stored = {name: data["found"] for name in names if (data := read_measured(name, plans))}
    return [(one.section, one.says, one.judge(stored)) for one in FURTHER_CLAIMS]


def _top(title: str) -> str:
    return f"# {title}\n\n{header('make paper', MEASURES, '.')}\n\n"


def _figure(folder: Path, plans: Path, figure: str, cells: Sequence[CellResults]) -> list[Path]:
    picture, page, data = (folder / f"{figure}{ending}" for ending in (".svg", ".md", ".json"))
    models = dict.fromkeys(one.cell.model for one in cells)
    if figure == "uniform":
        draw_quality(folder / "quality.svg", cells)
    draw_bars(picture, [(m, [c for c in cells if c.cell.model == m]) for m in models])
    data.write_text(as_json(cells), encoding="utf-8")
    commits = sorted({commit for one in cells for commit in one.commits})
    dates = sorted({date for one in cells for date in one.dates})
    budgets = sorted({r.budget_s for one in cells for r in one.results if r.planner in NAMES})
    text = (
        _top(TITLES[figure])
        + f"""Plans were found on {", ".join(dates)} by commit {", ".join(commits)}, with budgets of
{", ".join(f"{b:g} s" for b in budgets)}; this page draws them at today's prices.
{_loads(cells)}
Throughput is modelled by Heddle's evaluator; seconds of searches are measured.

![{TITLES[figure]}]({figure}.svg)

A bar is the first plan in the planner's own order that fits in memory, where the planner puts it.
An outline above it is the same plan where Heddle puts it. The number is the search time in seconds.

{NOTES.get(figure, "")}
## Samples per second, and seconds of the search

{throughputs(cells)}

The lead is that of Heddle at 3 s over the best baseline: where each baseline puts its plan, and
in the better of its own placement and Heddle's. Claims are judged by the latter. A star
marks a plan that no plan of Heddle can say (DP that differs by stage, uneven micro-batches); a
formula prices it.

## Where Heddle is below

{_behind(cells)}

## Each baseline by itself

{details(cells)}

{_never_first(cells)}

{by_formula.text(cells, plans)}"""
    )
    page.write_text(text, encoding="utf-8")
    return [picture, data, page]


def _loads(cells: Sequence[CellResults]) -> str:
    """How busy the machine was, which shortens what a budget of the wall's seconds buys."""
    loads = [load for one in cells for load in one.loads]
    if not loads:
        return "Nobody noted the load of the machine."
    return (
        f"Other work ran too: the load of the machine was {min(loads):g} to {max(loads):g}, and "
        f"a search counts the\nseconds of the processor, or of the wall before 2026-11-30."
    )


def _behind(cells: Sequence[CellResults]) -> str:
    rows = behind(cells)
    if not rows:
        return "Nowhere in these cells."
    return "\n".join(
        f"- {cell.cell.name}: {ahead:.2%} of {NAMES[best.planner]}{_cause(cell, best)}"
        for cell, best, ahead in rows
    )


def _cause(cell: CellResults, best: Result) -> str:
    """Why Heddle at 3 s is below: no plan of Heddle says the other, or the search is too short."""
    if best.beyond:
        return f", which no plan of Heddle can say ({best.beyond})"
    longer, same = lead(cell, SAME), cell.of(SAME)
    if longer is None or same is None:
        return ""
    given = f"with the baselines' budget, {same.budget_s:g} s, Heddle has {longer:.2%}"
    return f". The search is too short: {given}" if longer >= 1 else f". Its search misses: {given}"


def _never_first(cells: Sequence[CellResults]) -> str:
    names = never_first(cells)
    if not names:
        return "Every baseline is the best baseline of a cell."
    lines = [f"Never the best baseline of a cell here: {', '.join(NAMES[name] for name in names)}."]
    for name in names:
        by_best = leads_by_best_plan(cells, name)
        ends = [one.finished for cell in cells if (one := cell.of(name))]
        found = "so its order loses them" if by_best else "no plan in its reach is so fast"
        lines.append(
            f"{NAMES[name]}: its search ends by itself in {sum(ends)} of {len(ends)} cells. The "
            f"best of all its plans would lead in {by_best} of them: {found}."
        )
    return "\n\n".join([lines[0], "\n".join(f"- {line}" for line in lines[1:])])
