"""The section of `docs/results/operator_scale.md` that this benchmark writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.operator_scale.sizes import CHANGES, GPUS, Measured, Sizes
from benchmarks.pages import header
from tests.cluster.assets import KUBERNETES_VERSION

PAGE = "# The operator at a thousand nodes\n"
TITLE = "## On a real API server, without kubelets"
# {start of a phase's name: goal of its net CPU time}
CPU_GOALS_S = {"labels": 0.1, "pods of others": 2.0, "readiness": 2.0}
BLOCKED_GOAL_S, LARGE_BLOCKED_GOAL_S, WAIT_GOAL_S = 0.2, 0.5, 1.0


def cpu_goal_s(row: Measured) -> float | None:
    """Goal of a phase's CPU time without that at rest; None: it has none."""
    return next((s for start, s in CPU_GOALS_S.items() if row.phase.startswith(start)), None)


def blocked_goal_s(row: Measured) -> float:
    """Goal of the longest turn of the loop in a phase."""
    return LARGE_BLOCKED_GOAL_S if row.phase.startswith("a job of") else BLOCKED_GOAL_S


def report(sizes: Sizes, rows: Sequence[Measured]) -> str:
    """The section."""
    usual = asdict(Sizes())
    options = "".join(
        f" --{name.replace('_', '-')} {value}"
        for name, value in asdict(sizes).items()
        if value != usual[name]
    )
    table = "\n".join(map(_row, rows))
    notes = "\n".join(f"- {row.phase}: {row.note}" for row in rows if row.note)
    return f"""{TITLE}

{header("python -m benchmarks.operator_scale" + options, ["heddle_operator"], ",")}
shared with other work. Kubernetes {KUBERNETES_VERSION}: API server and etcd are real; nodes,
kubelets, scheduler and agents are emulated by one process beside the operator. No rank computes.

{sizes.nodes} nodes of {GPUS} GPUs, {sizes.foreign_pods} pods of others, {sizes.jobs} jobs of
2 nodes. A phase of changes has {CHANGES} in {sizes.changes_s:g} s. CPU is that of the operator's
process without its planners, less what it uses at rest with the same jobs. Turns of the loop and
decisions are bounds from the operator's histograms: the longest turn, by the wall clock and by the
CPU, and the 95th percentile of decisions. A wait is from an event to the record of the plan that
follows, with its search. A cell is what was measured, and the goal where there is one.

| phase | CPU s | turn at most, s | its CPU s | decision p95, s | wait p95, s | writes |
| --- | --- | --- | --- | --- | --- | --- |
{table}

{notes}
"""


def with_section(page: str, section: str) -> str:
    """The page with this section in place of the one of that title, or at its end."""
    title = section.partition("\n")[0]
    head, found, rest = (page or PAGE).partition(title)
    after = rest.partition("\n## ")
    others = f"\n## {after[2]}" if found and after[1] else ""
    return f"{head.rstrip()}\n\n{section.rstrip()}\n{others}"


def _row(row: Measured) -> str:
    cells = (
        row.phase,
        _with_goal(_s(row.net_cpu_s), cpu_goal_s(row)),
        _with_goal(_bound(row.blocked_s), blocked_goal_s(row)),
        _bound(row.turn_cpu_s),
        _bound(row.decision_p95_s),
        _with_goal(_s(row.wait_p95_s), WAIT_GOAL_S if row.waits_s else None),
        str(row.writes),
    )
    return f"| {' | '.join(cells)} |"


def _with_goal(cell: str, goal: float | None) -> str:
    return cell if goal is None else f"{cell} (goal {goal:g})"


def _s(seconds: float | None) -> str:
    if seconds is None or math.isnan(seconds):
        return "-"
    return f"{seconds:.2f}" if math.isfinite(seconds) else "never"


def _bound(seconds: float | None) -> str:
    if seconds is None:
        return "no answer"
    return f"<= {seconds:g}" if math.isfinite(seconds) else "> 60"
