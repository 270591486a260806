"""Runs the checks one after the other, each in a process of its own with a limit.

A check that fails, hangs or ends its process costs its own line alone.  A few seconds before its
limit all its processes write their stacks.  The limits may sum to more than the time of all: who
comes late gets what is left, and who gets too little is named.
It imports nothing heavy, so it also runs where torch cannot be imported.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from planner.wording import counted
from worker.device.environment import environment_of
from worker.device.gpus import Nvml
from worker.errors import DeviceUnusable

ROOT = Path(__file__).parents[2]
# Seconds at most, the most valuable first.  A fresh machine reads torch from its disk the first
# time, and each process makes a CUDA context.
ONE_S = {
    "versions": 90.0, "fork": 90.0, "device": 45.0, "wire": 45.0, "update": 45.0, "story": 180.0,
    "engine": 120.0, "experts": 60.0, "attention": 75.0,
    "nccl_alone": 60.0, "nccl_pair": 75.0, "nccl_gone": 75.0, "job": 120.0, "profile": 120.0,
}  # fmt: skip
TWO_S = {"two_rates": 120.0, "two_moves": 120.0, "two_lives": 240.0}
BUDGET_S = 570.0  # for all: they end within ten minutes
LEAST_S = 20.0  # a check with less does not begin
STACKS_S = 8.0  # before its limit
MOST_BYTES = 1 << 20  # of the log of one check
MOST_ERRORS = 4  # that stand in its line
ERROR = re.compile(rb"^(?:[\w.]*(?:Error|Exception|Failed|Silent|Unusable)\b: .*)$", re.MULTILINE)
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "PYTHONUNBUFFERED": "1",
    "DS_ACCELERATOR": "cpu",
    # The planner would compile for minutes on a machine that has never run it.
    "NUMBA_DISABLE_JIT": "1",
}


class Ran(NamedTuple):
    """A check that has ended.

    Attributes:
        line: what it found; what is missing in it, the runner knows.
        log: what it wrote beside.
    """

    line: dict[str, Any]
    log: bytes


def environment(way: str) -> dict[str, str]:
    """Variables of a check: of ranks on a GPU, those that an agent gives them.

    Kernels are loaded when they are used: `fork` says how long it takes to load all at once, and
    the ranks of `job` and the checks of NCCL do so.
    """
    if way == "dry":
        return ENVIRONMENT
    return {**environment_of("cuda"), **ENVIRONMENT, "CUDA_MODULE_LOADING": "LAZY"}


def run_check(command: Sequence[str], name: str, way: str, limit_s: float) -> Ran:
    """Run a command that says one line of JSON, and end all its processes at the limit."""
    started_s = time.monotonic()
    stacks_at = time.time() + max(limit_s - STACKS_S, limit_s / 2)
    variables = {**os.environ, **environment(way), "STACKS_AT": str(stacks_at)}
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=said, stderr=log, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what outlived it
        process.wait()
        said.seek(0)
        line = _line(said.read())
        log.seek(max(0, log.seek(0, os.SEEK_END) - MOST_BYTES))
        told = log.read()
    line = {"check": name, "way": way, **line, "took_s": round(time.monotonic() - started_s, 1)}
    if code is None:
        line["error"] = f"it did not end within {limit_s:.0f} s; its stacks are in the log"
    elif code and "ok" not in line:
        line["error"] = f"its process ended with {code}"
    if code is None or "ok" not in line:
        line["ok"] = False
    if line["ok"] is False:
        line["said"] = errors_of(told)
    return Ran(line, told)


def errors_of(log: bytes) -> list[str]:
    """The first errors of a log, each once: what comes later mostly follows from them."""
    found = (one.decode(errors="replace")[:300] for one in ERROR.findall(log))
    return list(dict.fromkeys(found))[:MOST_ERRORS]


def _line(said: bytes) -> dict[str, Any]:
    """The last line, if it is an object of JSON; else nothing."""
    last = said.strip().rpartition(b"\n")[2]
    try:
        found = json.loads(last)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def run_all(
    checks: dict[str, float],
    way: str,
    out: Path,
    *,
    command: Callable[[str], Sequence[str]],
    budget_s: float = BUDGET_S,
    patience: float = 1.0,
) -> list[dict[str, Any]]:
    """The lines of the checks, which stand in `out` as soon as each is known."""
    until_s, found = time.monotonic() + budget_s * patience, []
    for name, most_s in checks.items():
        left_s = until_s - time.monotonic()
        if left_s < min(LEAST_S, most_s):
            ran = Ran({"check": name, "way": way, "left_out": "no time is left", "ok": None}, b"")
        else:
            ran = run_check(command(name), name, way, min(most_s * patience, left_s))
        with (out / "gpu.log").open("ab") as log:
            log.write(f"==== {name} ====\n".encode() + ran.log)
        with (out / "gpu.jsonl").open("a") as lines:
            lines.write(json.dumps(ran.line) + "\n")
        sys.stdout.write(json.dumps(ran.line) + "\n")
        sys.stdout.flush()
        found.append(ran.line)
    return found


def why_not(way: str, gpus: int) -> str | None:
    """Why no check can run here; None: they can."""
    if way == "dry":
        return None
    try:
        version, seen = Nvml().version(), len(Nvml().gpus())
    except DeviceUnusable as error:
        return f"{error}; or use --dry"
    if version is None:
        return "there is no NVIDIA driver here; run this on a machine with a GPU, or with --dry"
    if seen < gpus:
        return f"this machine shows {counted(seen, 'GPU')}, and {gpus} are needed; or use --dry"
    return None


def told(lines: Sequence[dict[str, Any]], out: Path) -> str:
    """For people: one row a check, and where all stands."""
    words = {True: "holds", False: "FAILS", None: "left out"}
    rows = []
    for line in lines:
        why = line.get("error") or line.get("left_out") or next(iter(line.get("said", ())), "")
        took = f"{line.get('took_s', 0):6.1f} s"
        rows.append(f"{line['check']:12}{words[line['ok']]:10}{took}  {why}".rstrip())
    again = ",".join(line["check"] for line in lines if line["ok"] is not True)
    last = [f"again: tests/gpu/run.sh --only {again}"] if again else []
    return "\n".join([*rows, f"lines and stacks: {out}/gpu.jsonl {out}/gpu.log", *last, ""])


def main() -> int:
    """0 if all checks hold or are left out with a reason, 1 if one fails, 2 if none can run."""
    parser = argparse.ArgumentParser(description="Checks for the first minutes on a GPU.")
    parser.add_argument("--dry", action="store_true", help="on the simulated device")
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1, help="of this machine")
    parser.add_argument("--only", default="", help="names of checks, such as engine,job")
    given = parser.parse_args()
    way = "dry" if given.dry else "cuda"
    checks = ONE_S if given.gpus == 1 else TWO_S
    asked = [name for name in given.only.split(",") if name]
    if unknown := [name for name in asked if name not in checks]:
        parser.error(f"--only is {','.join(unknown)}; choose of {', '.join(checks)}")
    if (why := why_not(way, given.gpus)) is not None:
        sys.stderr.write(why + "\n")
        return 2
    out = Path(os.environ["OUT"])
    lines = run_all(
        {name: checks[name] for name in asked or checks},
        way,
        out,
        command=lambda name: [sys.executable, "-m", "tests.gpu.checks", name, f"--{way}"],
        budget_s=float(os.environ.get("BUDGET_S", BUDGET_S)),
        patience=float(os.environ.get("PATIENCE", "1")),
    )
    sys.stderr.write(told(lines, out))
    return int(any(line["ok"] is False for line in lines))


if __name__ == "__main__":
    sys.exit(main())
