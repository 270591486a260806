"""Compile the planner's kernel ahead of its first use: `python -m planner.cli.warm_up`.

numba keeps the machine code beside the sources (`planner.estimator.jit`), so that this takes
minutes once and a second afterwards.  `make setup` and the image do it.
"""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from planner.cluster.composition import Composition
from planner.estimator.jit import cache_folder
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.driver import search

GPUS = "h100=4x4,a100-40=4x4+2x1"


def forget_others(own: Path) -> None:
    """Remove the machine code of other versions that lies beside that folder; say what stays.

    A copy among temporary files has none beside it.
    """
    for folder in own.parent.glob("numba-*"):
        if own.name.startswith("numba-") and folder != own:
            try:
                shutil.rmtree(folder)
            except OSError as error:
                sys.stderr.write(f"machine code of another version stays: {error}\n")


def main() -> None:
    """Plan once for a model of each kind, so that every function is compiled.

    What was compiled for other versions of these sources goes.
    """
    started_s = time.perf_counter()
    for name in ("llama3-8b", "qwen3-30b-a3b"):
        workload = Workload(find_model(name), 64, 2048, "fp16")
        request = PlanRequest(workload, Composition.from_text(GPUS), budget_evaluations=2000)
        profile = find_profile(workload)
        search(request, profile)
        search(replace(request, method="random"), profile)
    forget_others(cache_folder())
    sys.stdout.write(f"the planner is ready after {time.perf_counter() - started_s:.0f} s\n")


if __name__ == "__main__":
    main()
