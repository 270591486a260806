"""Compile the planner's estimator ahead of its first use: `planner.warm_up()`.

numba keeps the machine code beside the sources (`planner.estimator.jit`), so that this takes about
a minute once.  `make setup` and the image do it by `python -m planner.compilation`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from planner.cluster.composition import Composition
from planner.estimator import jit  # what imports from it is among the compiled sources
from planner.estimator.build_tables import pricing_of
from planner.model.catalogue import find_model
from planner.model.workload import Workload
from planner.profiles.generator import find_profile
from planner.request import PlanRequest
from planner.search.driver import search
from planner.search.searcher import limits_of

LOG = logging.getLogger(__name__)

GPUS = "h100=4x4,a100-40=4x4+2x1"
EVALUATIONS = 2000  # so many that both engines have come to all that they do


def warm_up() -> None:
    """Compile what is not compiled yet, in a process of its own; say so before.

    One that was interrupted goes on from the functions that it has finished.  A terminal's Ctrl-C
    reaches this process alone, which ends that one: it would print a traceback while it imports.
    """
    if jit.is_compiled():
        return
    LOG.warning(
        "compiling the planner's estimator, once for this version: a minute, "
        "or several on a busy machine"
    )
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    command = [sys.executable, "-m", "planner.compilation"]
    subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        check=False,
        process_group=0,
    )


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


def call_all() -> None:
    """Have every function called: plan for time and for money, and teach a policy."""
    from planner.training.teacher import teach  # whoever only plans does not load it

    nodes = Composition.from_text(GPUS).nodes
    composition = Composition(tuple(replace(node, price=1.0) for node in nodes))
    workload = Workload(
        model=find_model("qwen3-30b-a3b"),
        global_batch=64,
        sequence_length=2048,
        precision="fp16",
        memory="paper",
    )
    profile = find_profile(workload)
    request = PlanRequest(
        workload=workload, composition=composition, budget_evaluations=EVALUATIONS
    )
    search(request, profile)
    search(replace(request, objective="cost"), profile)
    pricing = pricing_of(workload, composition, profile)
    assert pricing is not None
    teach(pricing.tables, limits_of(request), 1, 0)


def main() -> None:
    """Compile what is not compiled yet, and remove what was compiled for other sources."""
    started_s = time.perf_counter()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C in whoever waits ends this one, too
    with (jit.FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever comes second finds all done
        if not jit.is_compiled():
            call_all()
            jit.note_compiled()
    forget_others(jit.FOLDER)
    sys.stdout.write(f"the planner is ready after {time.perf_counter() - started_s:.0f} s\n")


if __name__ == "__main__":
    main()
