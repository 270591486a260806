"""Cost of `heddle plan` as a process: wall and processor time, peak memory, imports.

Every module has its bytecode beside it after `make setup`; so it is here, in a folder of its own,
whatever the environment says about writing bytecode.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUDGET_S = 0.5
REPEATS = 3
BYTECODE = ROOT / "build" / "bytecode"
COMMAND = """
import sys
from heddle.main import main
try:
    main()
finally:
    sys.stderr.write(f"torch imported: {'torch' in sys.modules}\\n")
"""


def with_bytecode() -> dict[str, str]:
    """The environment of a process whose modules are compiled to bytecode once."""
    unset = {"PYTHONDONTWRITEBYTECODE"}
    kept = {name: text for name, text in os.environ.items() if name not in unset}
    return kept | {"PYTHONPYCACHEPREFIX": str(BYTECODE)}


def plan_once(model: str, composition: str) -> dict[str, Any]:
    """One run of the command."""
    arguments = ["plan", "--model", model, "--composition", composition]
    arguments += ["--budget-s", str(BUDGET_S), "--output", "json"]
    started_s = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=ROOT,
        env=with_bytecode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    said = child.stderr.read()
    child.stderr.close()
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - started_s
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"heddle plan ended with {child.returncode}: {said}")
    return {
        "model": model,
        "composition": composition,
        "wall_s": wall_s,
        "processor_s": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
        "torch": "torch imported: True" in said,
    }


def measure(models: tuple[str, ...], composition: str) -> list[dict[str, Any]]:
    """A few runs of every model; the first of all, which writes bytecode, is thrown away."""
    plan_once(models[0], composition)
    return [plan_once(model, composition) for model in models for _ in range(REPEATS)]
