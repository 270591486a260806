"""How long a user waits: `heddle plan` from Enter to its answer, and the estimator's compilation.

Wall and processor seconds of whole processes, children included.  The search of `heddle plan` has
0.3 s, so that the rest is what starting costs.  The estimator is compiled in a copy of the sources.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.planner.process import ROOT, with_bytecode

PLAN = (
    *("-c", "from heddle.main import main; main()", "plan", "--budget-s", "0.3"),
    *("--model", "llama3-8b", "--composition", "h100=4x8,a100-40=4x4+2x1"),
)
COMPILE = ("-m", "planner.compilation")
REPEATS = 10
LIMITS_S = (1.0, 30.0)  # of wall time to an answer, of processor time to compile


class Spent(NamedTuple):
    """Cost of a process."""

    wall_s: float
    processor_s: float


def spent(arguments: tuple[str, ...], folder: Path) -> Spent:
    """Run Python in a folder, from whose sources it imports."""
    started_s = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=with_bytecode() | {"PYTHONPATH": str(folder)},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {child.returncode}")
    return Spent(time.perf_counter() - started_s, usage.ru_utime + usage.ru_stime)


def compiling() -> Spent:
    """Compile the estimator from nothing."""
    with tempfile.TemporaryDirectory() as name:
        for part in ("planner", "profiles"):
            shutil.copytree(
                ROOT / part, Path(name, part), ignore=shutil.ignore_patterns("__pycache__")
            )
        return spent(COMPILE, Path(name))


def table() -> str:
    """Both figures as a table; of the answers the quickest and the median."""
    spent(PLAN, ROOT)  # writes bytecode, and compiles what is not compiled
    answers = sorted(spent(PLAN, ROOT) for _ in range(REPEATS))
    cold, (answer_s, compile_s) = compiling(), LIMITS_S
    rows = (
        ("`heddle plan --budget-s 0.3`, quickest", answers[0], f"{answer_s:g} s of wall time"),
        ("`heddle plan --budget-s 0.3`, median", answers[REPEATS // 2], ""),
        ("compile the kernel", cold, f"{compile_s:g} s of processor time"),
    )
    lines = ["| | wall s | processor s | at most |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {name} | {one.wall_s:.2f} | {one.processor_s:.2f} | {limit} |"
        for name, one, limit in rows
    ]
    return "\n".join(lines)
