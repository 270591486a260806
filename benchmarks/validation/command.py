"""How far the cost model is from measurements of others: `python -m benchmarks.validation`.

Invariant: a folder supplies rows, a facts file everything else; the same command prices rows that
nobody has seen.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.validation.compare import (
    Figures,
    OperatorReport,
    SetReport,
    expert_saving,
    operator_reports,
    report,
)
from benchmarks.validation.datasets import SPLIT_SEED, read_sets
from heddle.cli.options import A_FILE, SHOWN, format_option
from heddle.cli.progress import progress_bar
from heddle.cli.tables import aligned
from planner.wording import counted


@click.command("validate-cost", context_settings=SHOWN)
@click.option(
    "--data",
    required=True,
    type=A_FILE,
    help="Folder of measured sets, laid out as tests/data/measured.",
)
@click.option(
    "--facts",
    type=A_FILE,
    help="YAML file with facts about the sets.  [default: those that come with Heddle]",
)
@format_option("table")
def validate_cost(data: Path, facts: Path | None, output: str) -> None:
    """Evaluate measured plans and print how far the prices are off.

    Constants were fitted on the fitted half of each set (a committed seed says which); the held-out
    half was never seen by the fit.  Rows of other files of the same sets are in neither.
    """
    sets = read_sets(data, facts)
    total = sum(len(measured.plans) for measured in sets)
    with progress_bar() as bar:
        task = bar.add_task("pricing", total=total)
        reports = [report(measured, lambda: bar.advance(task)) for measured in sets]
    operators = operator_reports(data)
    if output == "json":
        data_json = {
            "split_seed": SPLIT_SEED,
            "sets": [row.to_json() for row in reports],
            "operator_profiles": [asdict(row) for row in operators],
            "expert_saving_percent": 100 * expert_saving(),
        }
        click.echo(json.dumps(data_json, indent=2))
        return
    click.echo(_table(reports))
    if operators:
        click.echo("\nforward time of a layer against operator profiles, TP 1-8, micro-batch 1-8:")
        click.echo(_operator_table(operators))
    click.echo(
        f"\nEP 8 for ETP 8 on a Mixtral stage over two nodes saves {expert_saving():.0%} of expert "
        "communication (the paper measured 71 %)"
    )


def _table(reports: list[SetReport]) -> str:
    parts = []
    head = ("rows of", "rows", "mean", "median", "p90", "bias", "memory", "pick regret (max)")
    for row in reports:
        halves = (("all", row.all), ("fitted half", row.fitted), ("held-out half", row.held_out))
        cells = [_cells(name, half) for name, half in halves if half is not None]
        worst = "\n".join(
            f"  {priced.measured.label}: measured {priced.measured.seconds:.3f} s, priced "
            f"{priced.seconds:.3f} s ({priced.error:+.0%})"
            for priced in row.worst
        )
        parts.append(f"{row.name}\n{aligned(head, cells)}\nworst rows:\n{worst}")
    return "\n\n".join(parts)


def _cells(name: str, figures: Figures) -> tuple[str, ...]:
    most = f"({figures.pick_regret_max_percent or 0:.1f} %)"
    memory, regret = figures.memory_mean_error_percent, figures.pick_regret_mean_percent
    return (
        name,
        str(figures.rows),
        f"{figures.mean_error_percent:.1f} %",
        f"{figures.median_error_percent:.1f} %",
        f"{figures.p90_error_percent:.1f} %",
        f"{figures.bias_percent:+.1f} %",
        "-" if memory is None else f"{memory:.1f} %",
        "-" if regret is None else f"{regret:.1f} % {most} in {counted(figures.groups, 'group')}",
    )


def _operator_table(reports: tuple[OperatorReport, ...]) -> str:
    return aligned(
        ("GPU type", "layers", "mean", "p90", "beyond 15 %"),
        [
            (
                row.gpu_type,
                str(row.layers),
                f"{row.mean_error_percent:.1f} %",
                f"{row.p90_error_percent:.1f} %",
                str(row.beyond_15_percent),
            )
            for row in reports
        ],
    )
