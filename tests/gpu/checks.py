"""One check of `run.sh`, as a line of JSON: on the GPU that is here, or on the simulated device.

python -m tests.gpu.checks CHECK [--dry]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu.nccl import nccl_alone, nccl_gone, nccl_pair
from tests.gpu.two import two_lives, two_moves, two_rates

FAMILIES = ("llama3", "gpt2", "qwen3")
TOLERANCE = 1e-5  # of a loss in fp32: cos, exp and fma differ between processor and GPU
LOW_TOLERANCE = 2e-2  # in bf16
RESERVE = 1.2  # over the planner's bytes: CUDA's context, and what torch's allocator keeps
PATIENCE = int(os.environ.get("PATIENCE", "1"))
LIMIT_S = 290.0 * PATIENCE
Found = dict[str, Any]


def versions(way: str) -> Found:
    """Torch, its CUDA and NCCL, the driver and its GPUs."""
    import torch

    from worker.device.gpus import Nvml

    driver = Nvml()
    found = {"torch": torch.__version__, "cuda": torch.version.cuda, "driver": driver.version()}
    gpus = [gpu._asdict() for gpu in driver.gpus()]
    return found | {"gpus": gpus, "ok": way != "cuda" or bool(gpus)}


def fork(way: str) -> Found:
    """Two forked processes that each use the device."""
    from tests.unit.worker.ranks import run_ranks

    found = run_ranks(f"tests.gpu.ranks:{way}_multiplies", 2)
    return {"sums": found, "ok": found == [8.0, 8.0]}


def device(way: str) -> Found:
    """The contract of devices."""
    from tests.contracts.device_contract import CLAUSES
    from tests.unit.worker.ranks import run_ranks

    (kept,) = run_ranks(f"tests.gpu.ranks:{way}_keeps", 1)
    return {"broken": [clause for clause in CLAUSES if clause not in kept], "ok": kept == CLAUSES}


def wire(way: str) -> Found:
    """The contract of wires, three ranks on one GPU through staging memory."""
    from tests.unit.worker.ranks import run_ranks

    found = run_ranks(f"tests.gpu.ranks:{way}_sends", 3)
    is_kept = all(of["sum"] == [3.0, 6.0] and of["ended"] for of in found)
    return {"seen": found, "ok": is_kept}


def update(way: str) -> Found:
    """Whether an update has the bits of the processor, whole, cut and strided."""
    from tests.unit.worker.ranks import run_ranks

    (found,) = run_ranks(f"tests.gpu.ranks:{way}_updates", 1)
    return found | {"ok": len(set(found.values())) == 1}


def story(way: str) -> Found:
    """A life with changes of plan, a checkpoint and a lost peer, beside that on the processor."""
    from tests.simulated_device.lives import lives
    from tests.unit.worker.data.lines import prepared_lines

    ways = ("cpu", "cuda" if way == "cuda" else "staged")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        names = [f"{family}:{one}" for family in FAMILIES for one in ways]
        told = lives(Path(folder), prepared_lines(data), names, LIMIT_S)
    found: Found = {"apart": {}, "ok": True}
    for family in FAMILIES:
        of_way = [[v for k, v in told[f"{family}:{one}"][0] if k == "loss"] for one in ways]
        apart = max(abs(a - b) for a, b in zip(*of_way, strict=True))
        found["apart"][family] = apart
        digests = [
            [value for kind, value in rows if kind == "digest"][:3]
            for rows in told[f"{family}:{ways[1]}"]
        ]
        tolerance = LOW_TOLERANCE if family.startswith("qwen") else TOLERANCE
        found["ok"] &= apart <= tolerance and digests[0] == digests[1]
    return found


def attention(way: str) -> Found:
    """Torch's kernels of attention and their memory; the largest term is that of all scores."""
    from tests.unit.worker.ranks import run_ranks

    (cases,) = run_ranks(f"tests.gpu.work:{way}_attends", 1)
    near = all(
        case["apart"] <= (TOLERANCE if name.startswith("fp32") else LOW_TOLERANCE)
        for name, case in cases.items()
    )
    small = way == "dry" or all(
        case["peak_bytes"] < case["scores_bytes"]
        for name, case in cases.items()
        if name.startswith("bf16")
    )
    return {"cases": cases, "ok": near and small}


def engine(way: str) -> Found:
    """An engine alone: one wait a step, and no more memory than the planner's rule allows."""
    from tests.gpu.work import is_finite
    from tests.unit.worker.ranks import run_ranks

    (found,) = run_ranks(f"tests.gpu.work:{way}_trains", 1, LIMIT_S)
    fits = way == "dry" or found["memory_bytes"] <= RESERVE * found["planner_bytes"]
    return found | {"ok": is_finite(found["losses"]) and not any(found["waits"]) and fits}


def job(way: str) -> Found:
    """A job through agents: a rank joins, one leaves, one is killed."""
    from tests.gpu.job import run

    return run(way, PATIENCE)


def profile(way: str) -> Found:
    """A profile of the device, with which a plan is made."""
    from tests.unit.worker.ranks import run_ranks
    from worker.engine.update_digest import UPDATE_DIGEST

    (found,) = run_ranks(f"tests.gpu.work:{way}_profiles", 1, LIMIT_S)
    times = [*found["forward_s"].values(), *found["update"], found["samples_s"]]
    return found | {"ok": found["update_digest"] == UPDATE_DIGEST and min(times) > 0}


CHECKS: dict[str, Callable[[str], Found]] = {
    check.__name__: check
    for check in (
        *(versions, fork, device, wire, update, story),
        *(nccl_alone, nccl_pair, nccl_gone),
        *(attention, engine, job, profile),
    )
}

TWO: dict[str, Callable[[str], Found]] = {
    check.__name__: check for check in (two_rates, two_moves, two_lives)
}


def main(name: str, way: str) -> int:
    """Print one line; 0 if the check holds."""
    found = (CHECKS | TWO)[name](way)
    sys.stdout.write(json.dumps({"check": name, "way": way, **found}) + "\n")
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "dry" if "--dry" in sys.argv[2:] else "cuda"))
