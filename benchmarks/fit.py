"""Fit the constants of GPU types to measurements: `python -m benchmarks.fit FOLDER`.

Types of the operator profile: efficiencies, launch and host time of the forward pass, to that
profile; it timed operators one by one, so launches are longer there than in a whole iteration
(hence their bound).  `a100-80`: efficiencies, host times, the network's share and the host's time
around the step, to the fitted half of both vTrain sets at once; the operator profile of its
smaller sister is an anchor for the efficiencies, without which they drift beyond what products
reach.  Robust least squares on log ratios.  What is printed is copied into
`planner/cluster/gpu_types.toml` by hand, once.
Invariant: rows of the held-out half are never priced here, and no row has a constant of its own.
Source: data of vTrain and Sailor (MIT).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks.validation.compare import price_measured
from benchmarks.validation.datasets import read_sets
from benchmarks.validation.profiled_layers import (
    OPERATOR_PROFILES,
    ProfiledLayer,
    layer_seconds,
    read_profiled_layers,
)
from planner.cluster.gpu_types import HARDWARE
from planner.cluster.hardware import GpuHardware

MULTI_NODE_WEIGHT = 5.0  # 26 rows against some 440 of a single node
ROBUST_SCALE = 0.3  # errors above it count less than quadratically
BOUNDS = {
    "gemm_efficiency": (0.3, 1.1),
    "memory_efficiency": (0.3, 1.0),
    "launch_s": (1e-6, 6e-5),
    "host_forward_s": (1e-5, 3e-4),
    "host_backward_s": (5e-6, 3e-4),
    "step_s": (1e-4, 3e-2),
    "nic_efficiency": (0.3, 1.0),
}


def _profile_errors(layers: Sequence[ProfiledLayer], gpu: GpuHardware) -> list[float]:
    errors = []
    for layer in layers:
        forward_s, backward_s = layer_seconds(layer, replace(gpu, host_backward_s=0.0))
        errors.append(math.log(forward_s / layer.forward_s))
        if layer.tp == 1:
            errors.append(math.log(backward_s / layer.backward_s))
    return errors


def _solve(
    gpu: GpuHardware, names: Sequence[str], errors: Callable[[GpuHardware], list[float]]
) -> GpuHardware:
    def changed(logs: np.ndarray) -> GpuHardware:
        values: dict[str, Any] = dict(zip(names, map(float, np.exp(logs)), strict=True))
        return replace(gpu, **values)

    low, high = (np.log([BOUNDS[name][end] for name in names]) for end in (0, 1))
    start = np.clip(np.log([getattr(gpu, name) for name in names]), low + 1e-6, high - 1e-6)
    found = least_squares(
        lambda logs: np.array(errors(changed(logs))),
        start,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        max_nfev=15,
        diff_step=1e-2,  # prices are rounded to the nanosecond
    )
    return changed(found.x)


def fit_operators(layers: Sequence[ProfiledLayer], gpu: GpuHardware) -> GpuHardware:
    """Efficiencies and host time of a type from its operator profile."""
    mine = [layer for layer in layers if layer.gpu_type == gpu.name]
    names = ("gemm_efficiency", "memory_efficiency", "launch_s", "host_forward_s")
    return _solve(gpu, names, lambda changed: _profile_errors(mine, changed))


def fit_iterations(folder: Path, layers: Sequence[ProfiledLayer]) -> GpuHardware:
    """The constants of A100 from the fitted half of vTrain's rows, anchored to its operators."""
    mine = [layer for layer in layers if layer.gpu_type == "a100-40"]

    def errors(gpu: GpuHardware) -> list[float]:
        found = []
        for measured in read_sets(folder, hardware={**HARDWARE, gpu.name: gpu}):
            if not measured.name.startswith("vtrain/"):
                continue
            weight = MULTI_NODE_WEIGHT if "multi" in measured.name else 1.0
            found += [
                weight * math.log(1 + price_measured(plan).error)
                for plan in measured.plans
                if plan.fitted
            ]
        anchor = replace(
            HARDWARE["a100-40"],
            gemm_efficiency=gpu.gemm_efficiency,
            memory_efficiency=gpu.memory_efficiency,
            launch_s=gpu.launch_s,
        )
        return found + _profile_errors(mine, anchor)

    names = tuple(name for name in BOUNDS if name != "launch_s")
    return _solve(HARDWARE["a100-80"], names, errors)


def main() -> None:
    """Print the fitted constants."""
    folder = Path(sys.argv[1])
    layers = list(read_profiled_layers(folder / OPERATOR_PROFILES))
    for name in sorted({layer.gpu_type for layer in layers}):
        _print(fit_operators(layers, HARDWARE[name]))
    _print(fit_iterations(folder, layers))


def _print(gpu: GpuHardware) -> None:
    values = ", ".join(f"{name}={getattr(gpu, name):.3g}" for name in BOUNDS)
    sys.stdout.write(f"{gpu.name}: {values}\n")


if __name__ == "__main__":
    main()
