"""How far the cost model is from measurements: errors by set, and the regret of picking by it.

Invariant: every row counts once; a set's figures are also given for each half, so that what the
constants were fitted on never hides in what is reported.
Pick regret: in a group of rows with equal GPUs, batch and model, how much slower the row is that
the model prices fastest than the row that was measured fastest.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.validation.datasets import MeasuredSet
from benchmarks.validation.profiled_layers import (
    OPERATOR_PROFILES,
    layer_seconds,
    read_profiled_layers,
)
from benchmarks.validation.readers import MeasuredPlan
from planner.cluster.gpu_types import HARDWARE
from planner.cost.evaluate import cost_of
from planner.cost.expert_parallel import Device, Tiling, expert_seconds
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import RESERVE_BYTES, RESERVE_SHARE, generate

MIN_GROUP = 5
WORST = 5


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """A measured plan with its price."""

    measured: MeasuredPlan  # the plan
    seconds: float  # of an iteration, by the formula
    # predicted peak of any GPU: what the plan holds, and the share and constant that allocator
    # and context take besides
    memory_bytes: float

    @property
    def error(self) -> float:
        """Relative error of the time; above 0 where the price is too high."""
        return self.seconds / self.measured.seconds - 1

    @property
    def memory_error(self) -> float | None:
        """Relative error of the memory; None where none was measured."""
        if self.measured.memory_bytes is None:
            return None
        return self.memory_bytes / self.measured.memory_bytes - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Errors over some rows; None where there is nothing to compare."""

    rows: int  # how many
    mean_error_percent: float  # of the absolute errors
    median_error_percent: float  # of the absolute errors
    p90_error_percent: float  # of the absolute errors
    bias_percent: float  # mean of the signed errors; below 0 where prices are too low
    memory_mean_error_percent: float | None  # of the absolute errors of memory
    groups: int  # in which a plan is picked
    pick_regret_mean_percent: float | None  # of all groups
    pick_regret_max_percent: float | None  # of all groups


@dataclass(frozen=True, slots=True)
class SetReport:
    """Comparison of one set with the cost model."""

    name: str  # of the set
    all: Figures  # figures over all rows
    fitted: Figures | None  # over the half that constants were fitted on; None if it is empty
    held_out: Figures | None  # over the other half; None if it is empty
    worst: tuple[PricedPlan, ...]  # the rows with the largest errors, worst first

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            **asdict(self.all),
            "fitted_half": self.fitted and asdict(self.fitted),
            "held_out_half": self.held_out and asdict(self.held_out),
            "worst": [
                {
                    "row": row.measured.label,
                    "measured_s": row.measured.seconds,
                    "priced_s": row.seconds,
                    "error_percent": 100 * row.error,
                }
                for row in self.worst
            ],
        }


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """Forward times of layers against an operator profile, of one GPU type."""

    gpu_type: str  # that ran it
    layers: int  # how many (model, TP, micro-batch)
    mean_error_percent: float  # of the absolute errors
    p90_error_percent: float  # of the same
    beyond_15_percent: int  # layers that are off by more than 15 %


def price_measured(measured: MeasuredPlan) -> PricedPlan:
    """Evaluate one measured plan with the one evaluator."""
    priced = cost_of(measured.plan, measured.workload, measured.composition, measured.profile)
    held = priced.peak_memory_bytes * (1 + RESERVE_SHARE) + RESERVE_BYTES
    return PricedPlan(measured, priced.iteration_s, held)


def report(measured: MeasuredSet, advance: Callable[[], None] = lambda: None) -> SetReport:
    """Evaluate every row of a set; `advance` is called after each."""
    rows = []
    for plan in measured.plans:
        rows.append(price_measured(plan))
        advance()
    halves = ([row for row in rows if row.measured.fitted is half] for half in (True, False))
    fitted, held_out = (figures(half) if half else None for half in halves)
    worst = sorted(rows, key=lambda row: -abs(row.error))[:WORST]
    return SetReport(measured.name, figures(rows), fitted, held_out, tuple(worst))


def figures(rows: Sequence[PricedPlan]) -> Figures:
    """The figures of at least one row."""
    errors = [100 * abs(row.error) for row in rows]
    memory = [100 * abs(row.memory_error) for row in rows if row.memory_error is not None]
    regrets = [100 * regret for regret in pick_regrets(rows)]
    return Figures(
        rows=len(rows),
        mean_error_percent=statistics.fmean(errors),
        median_error_percent=statistics.median(errors),
        p90_error_percent=float(np.quantile(errors, 0.9)),
        bias_percent=statistics.fmean(100 * row.error for row in rows),
        memory_mean_error_percent=statistics.fmean(memory) if memory else None,
        groups=len(regrets),
        pick_regret_mean_percent=statistics.fmean(regrets) if regrets else None,
        pick_regret_max_percent=max(regrets, default=None),
    )


def pick_regrets(rows: Sequence[PricedPlan]) -> list[float]:
    """The regret of each group of at least five rows."""
    groups: defaultdict[tuple[object, ...], list[PricedPlan]] = defaultdict(list)
    for row in rows:
        groups[row.measured.group].append(row)
    regrets = []
    for group in groups.values():
        if len(group) >= MIN_GROUP:
            picked = min(group, key=lambda row: row.seconds)
            fastest = min(row.measured.seconds for row in group)
            regrets.append(picked.measured.seconds / fastest - 1)
    return regrets


def operator_reports(folder: Path) -> tuple[OperatorReport, ...]:
    """One report for each GPU type that the folder of measurements has an operator profile of."""
    errors: defaultdict[str, list[float]] = defaultdict(list)
    for layer in read_profiled_layers(folder / OPERATOR_PROFILES):
        forward_s, _ = layer_seconds(layer, HARDWARE[layer.gpu_type])
        errors[layer.gpu_type].append(100 * abs(forward_s / layer.forward_s - 1))
    return tuple(
        OperatorReport(
            name,
            len(row),
            statistics.fmean(row),
            float(np.quantile(row, 0.9)),
            sum(error > 15 for error in row),
        )
        for name, row in errors.items()
    )


def expert_saving() -> float:
    """Share of expert communication that EP 8 saves over ETP 8, as in the paper's section 3.2.

    A Mixtral stage of eight GPUs over two nodes of four on 100 Gb/s Ethernet, micro-batch 1.
    """
    workload = Workload(
        model=find_model("mixtral-8x7b"),
        global_batch=1,
        sequence_length=2048,
        precision="fp16",
        memory="paper",
    )
    profile = generate(workload.model, 2048, "fp16", (HARDWARE["a6000"],))
    devices = tuple(Device(f"node-{index // 4}", "a6000", None) for index in range(8))
    sliced, spread = (
        expert_seconds(workload, profile, Tiling(8, ep, etp), devices, 1, None)
        for ep, etp in ((1, 8), (8, 1))
    )
    return 1 - spread / sliced
