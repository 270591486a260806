"""Search efficiency: the best plan so far by plans priced, on the paper's 160 GPUs of four types.

Policies that learn on these GPUs are measured beside it (`learning`).
Source: Heddle, section 6.4 ("Search efficiency").
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.baselines.interface import Budget
from benchmarks.baselines.judge import judge
from benchmarks.baselines.mcts import plan as mcts
from benchmarks.evaluation.trial import best_so_far, try_budgets, try_out
from benchmarks.paper.cells import Cell, cell_of
from benchmarks.paper.tables import table
from heddle.cli.pictures import STYLE, write
from planner.request import PlanRequest

BUDGETS = (16, 64, 256, 1024, 4096, 16384, 32000)
LATE = 1.25  # times a budget, up to which a point counts for it
FURTHER = 8  # times the last budget, for MCTS
SEEDS = (0, 1, 2)
METHODS = ("policy", "random", "auto")
COLOURS = {
    "policy": "#c81e1e",
    "random": "#7b8794",
    "auto": "#2f6f9f",
    "MCTS": "#b5762a",
    "policy, learning": "#e8a0a0",
    "flat-RL": "#3a7d44",
    "flat-RL, masked": "#9bc53d",
}
Points = list[list[float]]  # plans priced, samples per second


def cell() -> Cell:
    """LLaMA-3-8B on the figure's composition."""
    return cell_of("llama3-8b", "four-160")


def measure(
    budgets: Sequence[int] = BUDGETS, further: int = FURTHER, seeds: Sequence[int] = SEEDS
) -> dict[str, Any]:
    """Curves by method and seed."""
    found: dict[str, Any] = {}
    for method in METHODS:
        found[method] = [_heddle(method, seed, budgets) for seed in seeds]
    more = (*budgets, further * budgets[-1])
    found["MCTS"] = [_mcts(seed, more if seed == seeds[0] else budgets) for seed in seeds]
    return found


def _heddle(method: Any, seed: int, budgets: Sequence[int]) -> Points:
    question = cell().question()
    request = PlanRequest(
        workload=question.workload,
        composition=question.composition,
        method=method,
        seed=seed,
        threads=1,
        budget_evaluations=budgets[0],
    )
    if method != "auto":
        request = replace(request, budget_evaluations=None)
    first = try_out(request, question.profile)
    return [
        list(point) for point in best_so_far(try_budgets(request, question.profile, budgets, first))
    ]


def _mcts(seed: int, budgets: Sequence[int]) -> Points:
    question, best, points = cell().question(seed), 0.0, []
    for budget in budgets:
        answer = mcts(question, Budget(evaluations=budget))
        found = judge(answer, question, most=1).counted
        if found is not None:
            best = max(best, question.workload.global_batch / found.iteration_s)
        points.append([float(answer.plans_priced), best])
    return points


def reached(curve: Points, evaluations: float) -> float:
    """The best after so many plans; 0 where there is none yet."""
    return max((rate for at, rate in curve if at <= evaluations), default=0.0)


def needed(curve: Points, rate: float) -> float | None:
    """Plans until a throughput is reached; None if it never is."""
    return next((at for at, found in curve if found >= rate), None)


def median_reached(curves: Sequence[Points], budget: float) -> float:
    """Median over seeds of the best after so many plans, a quarter more allowed."""
    return statistics.median(reached(curve, LATE * budget) for curve in curves)


@mpl.rc_context(STYLE)
def draw(path: Path, stored: dict[str, Any]) -> None:
    """Best so far over plans priced, a line a seed."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for method, curves in stored.items():
        for index, curve in enumerate(curves):
            at, rates = zip(*curve, strict=True)
            label = method if index == 0 else None
            axes.step(at, rates, where="post", lw=1, color=COLOURS[method], label=label)
    axes.set(xscale="log", xlabel="plans priced", ylabel="best so far, samples/s, modelled")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    write(path, figure)


def text(stored: dict[str, Any]) -> str:
    """Medians over seeds by budget."""
    budgets = sorted({round(at) for curves in stored.values() for c in curves for at, _ in c})
    shown = [b for b in BUDGETS if budgets and b <= budgets[-1]]
    rows = [
        (method, *(_cell(curves, budget) for budget in shown)) for method, curves in stored.items()
    ]
    last = stored["MCTS"][0][-1]
    seeds = sorted({len(curves) for curves in stored.values()})
    return f"""LLaMA-3-8B on `{cell().listed.text}`: samples per second of the best plan
so far, by plans priced. Each row is the median of {" or ".join(map(str, seeds))} seeds. Rollouts
end with their plan, so a budget may be passed by a quarter.

![Best so far by plans priced](efficiency.svg)

{table(("method", *(f"{b:,}" for b in shown)), rows)}

MCTS reaches {last[1]:.1f} samples/s after {last[0]:,.0f} plans. It stands in for HetAuto, whose
text is not public.
"""


def _cell(curves: Sequence[Points], budget: int) -> str:
    """A median, or a dash where nothing was measured by then or so late."""
    at = [point[0] for curve in curves for point in curve]
    if min(at) > LATE * budget or max(at) < budget / LATE:
        return "-"
    return f"{median_reached(curves, budget):.1f}"
