"""`heddle validate-cost`: how far the cost model is from measurements that nobody here made.

Invariant: a folder supplies rows, a facts file everything else; the same command prices rows that
nobody has seen.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from planner.cli.tables import aligned
from planner.cluster.gpu_types import HARDWARE
from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import generate
from planner.validation.compare import Figures, SetReport, quantile, report
from planner.validation.measured_sets import SPLIT_SEED, read_sets
from planner.validation.profiled_layers import layer_seconds, read_profiled_layers

OPERATOR_PROFILES = Path("sailor") / "aceso_profiler"


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """Layer times against an operator profile, of one GPU type.

    Attributes:
        gpu_type: that ran it.
        layers: how many (model, TP, micro-batch).
        mean: of the absolute errors of the forward time, in percent.
        p90: of the same.
        beyond: layers that are off by more than 15 %.
    """

    gpu_type: str
    layers: int
    mean: float
    p90: float
    beyond: int


def operator_reports(folder: Path) -> tuple[OperatorReport, ...]:
    """One report for each GPU type that the folder has an operator profile of."""
    errors: dict[str, list[float]] = {}
    for layer in read_profiled_layers(folder / OPERATOR_PROFILES):
        forward_s, _ = layer_seconds(layer, HARDWARE[layer.gpu_type])
        errors.setdefault(layer.gpu_type, []).append(100 * abs(forward_s / layer.forward_s - 1))
    return tuple(
        OperatorReport(
            name,
            len(row),
            statistics.fmean(row),
            quantile(sorted(row), 0.9),
            sum(error > 15 for error in row),
        )
        for name, row in errors.items()
    )


def expert_saving() -> float:
    """Share of expert communication that EP 8 saves over ETP 8, as in the paper's section 3.2.

    A Mixtral stage of eight GPUs over two nodes of four on 100 Gb/s Ethernet, micro-batch 1.
    """
    workload = Workload(find_model("mixtral-8x7b"), 1, 2048, "fp16")
    profile = generate(workload.model, 2048, "fp16", (HARDWARE["a6000"],))
    devices = tuple(Device(f"node-{index // 4}", "a6000") for index in range(8))
    sliced, spread = (
        expert_seconds(workload, profile, Tiling(8, ep, etp), devices, 1)
        for ep, etp in ((1, 8), (8, 1))
    )
    return 1 - spread / sliced


@click.command("validate-cost")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of measured sets, laid out as tests/data/measured.",
)
@click.option("--facts", type=click.Path(path_type=Path), help="Facts about the sets, a YAML file.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def validate_cost(data: Path, facts: Path | None, output: Literal["table", "json"]) -> None:
    """Price measured plans and print how far the prices are off.

    Constants were fitted on the fitted half of each set (a committed seed says which); the held-out
    half was never seen by the fit.  Rows of other files of the same sets are in neither.
    """
    sets = read_sets(data, facts)
    total = sum(len(measured.plans) for measured in sets)
    with click.progressbar(
        length=total, label="pricing", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        reports = [report(measured, lambda: bar.update(1)) for measured in sets]
    operators = operator_reports(data)
    if output == "json":
        click.echo(json.dumps(_json(reports, operators), indent=2))
        return
    click.echo(_table(reports))
    if operators:
        click.echo("\nforward time of a layer against operator profiles, TP 1-8, micro-batch 1-8:")
        click.echo(_operator_table(operators))
    click.echo(
        f"\nEP 8 for ETP 8 on a Mixtral stage over two nodes saves {expert_saving():.0%} of expert "
        "communication (the paper measured 71 %)"
    )


def _json(reports: list[SetReport], operators: tuple[OperatorReport, ...]) -> dict[str, Any]:
    return {
        "split_seed": SPLIT_SEED,
        "sets": [row.to_json() for row in reports],
        "operator_profiles": [
            {
                "gpu_type": row.gpu_type,
                "layers": row.layers,
                "mean_error_percent": row.mean,
                "p90_error_percent": row.p90,
                "beyond_15_percent": row.beyond,
            }
            for row in operators
        ],
        "expert_saving_percent": 100 * expert_saving(),
    }


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
    memory = "-" if figures.memory_mean is None else f"{figures.memory_mean:.1f} %"
    regret = (
        "-"
        if figures.regret_mean is None
        else f"{figures.regret_mean:.1f} % ({figures.regret_max:.1f} %) in {figures.groups} groups"
    )
    return (
        name,
        str(figures.rows),
        f"{figures.mean:.1f} %",
        f"{figures.median:.1f} %",
        f"{figures.p90:.1f} %",
        f"{figures.bias:+.1f} %",
        memory,
        regret,
    )


def _operator_table(reports: tuple[OperatorReport, ...]) -> str:
    return aligned(
        ("GPU type", "layers", "mean", "p90", "beyond 15 %"),
        [
            (
                row.gpu_type,
                str(row.layers),
                f"{row.mean:.1f} %",
                f"{row.p90:.1f} %",
                str(row.beyond),
            )
            for row in reports
        ],
    )
