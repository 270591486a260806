"""Fit the constants of `planner.gpu_types` to measurements: `python -m planner.fit FOLDER`.

A100: efficiencies, host times, the network's share and the host's time around the step are fitted
    to
the fitted half of both vTrain sets at once and to the A100-40 operator profile, by robust least
squares on log ratios.  Other types: efficiencies and host time of the forward pass to the operator
profile alone.  What is printed is rounded into `planner.gpu_types` by hand, once.
Invariant: rows of the held-out half are never priced here, and no row has a constant of its own.
Source: design, "Figures to reach"; data of vTrain and Sailor (MIT).
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

from planner.gpu_types import HARDWARE
from planner.hardware import GpuHardware
from planner.measured_sets import read_sets
from planner.profiled_layers import ProfiledLayer, layer_seconds, read_profiled_layers
from planner.validation import price_measured

MULTI_NODE_WEIGHT = 5.0  # 26 rows against some 440 of a single node
ROBUST_SCALE = 0.3  # errors above it count less than quadratically
BOUNDS = {
    "gemm_efficiency": (0.3, 1.1),
    "memory_efficiency": (0.3, 1.0),
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
    names = ("gemm_efficiency", "memory_efficiency", "host_forward_s")
    return _solve(gpu, names, lambda changed: _profile_errors(mine, changed))


def fit_a100(folder: Path, layers: Sequence[ProfiledLayer]) -> GpuHardware:
    """The constants of A100 from half of vTrain's rows, and from its operator profile."""
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
        forty = HARDWARE["a100-40"]
        shared = replace(
            forty,
            gemm_efficiency=gpu.gemm_efficiency,
            memory_efficiency=gpu.memory_efficiency,
        )
        return found + _profile_errors(mine, shared)

    return _solve(HARDWARE["a100-80"], tuple(BOUNDS), errors)


def main() -> None:
    """Print the fitted constants."""
    folder = Path(sys.argv[1])
    layers = list(read_profiled_layers(folder / "sailor" / "aceso_profiler"))
    for name in sorted({layer.gpu_type for layer in layers}):
        _print(fit_operators(layers, HARDWARE[name]))
    _print(fit_a100(folder, layers))


def _print(gpu: GpuHardware) -> None:
    values = ", ".join(f"{name}={getattr(gpu, name):.3g}" for name in BOUNDS)
    sys.stdout.write(f"{gpu.name}: {values}\n")


if __name__ == "__main__":
    main()
