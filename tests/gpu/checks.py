"""One check of `run.sh`, as a line of JSON: on the GPU that is here, or on the simulated device.

python -m tests.gpu.checks CHECK [--dry]

A check of several cases tries all of them: the error of one stands in its place.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu.cases import has_failed, tried
from tests.gpu.nccl import nccl_alone, nccl_gone, nccl_pair
from tests.gpu.two import two_lives, two_moves, two_rates
from tests.unit.worker.forks import stacks_before_the_end

FAMILIES = ("llama3", "gpt2", "qwen3")
TOLERANCE = 1e-5  # of a loss in fp32: cos, exp and fma differ between processor and GPU
LOW_TOLERANCE = 2e-2  # in bf16
RESERVE = 1.2  # over the planner's bytes: CUDA's context, and what torch's allocator keeps
PATIENCE = float(os.environ.get("PATIENCE", "1"))
LIMIT_S = 290.0 * PATIENCE  # the runner's are shorter
NEEDED = (
    *("numpy", "torch", "deepspeed", "pydantic", "pydantic_core", "annotated_types"),
    *("typing_inspection", "hjson", "msgpack", "einops", "psutil", "tqdm", "packaging"),
    *("safetensors", "click", "numba", "xxhash", "cpuinfo", "ninja", "aiohttp"),
)
Found = dict[str, Any]


def versions(way: str) -> Found:
    """Torch, its CUDA and NCCL, the driver and its GPUs, and which packages are missing."""
    import torch

    from worker.device.gpus import Nvml
    from worker.world.payload import own_nccl

    driver, nccl = Nvml(), own_nccl()
    gpus = [gpu._asdict() for gpu in driver.gpus()]
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    first = tried("first", lambda: _first_call() if way == "cuda" else {})
    wrong = {"error": f"tests/gpu/carry.sh can carry {', '.join(missing)}"} if missing else {}
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": [nccl.version, "new class" if nccl.uses_new else "old class"],
        "driver": driver.version(),
        "gpus": gpus,
        "missing": missing,
        **first,
        **wrong,
        "ok": not missing and not has_failed(first) and (way != "cuda" or bool(gpus)),
    }


def _first_call() -> Found:
    """What the GPU says of itself at the first call of CUDA."""
    import torch

    facts = torch.cuda.get_device_properties(0)
    return {
        "name": facts.name,
        "capability": [facts.major, facts.minor],
        "processors": facts.multi_processor_count,
        "memory_bytes": facts.total_memory,
        "free_bytes": torch.cuda.mem_get_info()[0],
        "cudnn": torch.backends.cudnn.version(),
    }


def fork(way: str) -> Found:
    """Two forked processes that each use the device, by how CUDA loads its kernels."""
    from tests.unit.worker.ranks import run_ranks

    found: Found = {}
    for loading in ("LAZY", "EAGER") if way == "cuda" else ("LAZY",):
        os.environ["CUDA_MODULE_LOADING"] = loading
        found |= tried(loading, lambda: run_ranks(f"tests.gpu.ranks:{way}_multiplies", 2))
    is_right = not has_failed(found) and all(
        rank["sum"] == 8.0 for ranks in found.values() for rank in ranks
    )
    return {"loading": found, "ok": is_right}


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
    from tests.unit.worker.data.lines import prepared_lines

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        lines = prepared_lines(data)
        found: Found = {}
        for family in FAMILIES:
            home = Path(folder) / family
            home.mkdir()
            found |= tried(family, partial(_life, way, family, home, lines))
    return {"families": found, "ok": not has_failed(found) and all(o["ok"] for o in found.values())}


def _life(way: str, family: str, folder: Path, lines: str) -> Found:
    """How far the losses of a family are from those on the processor."""
    from tests.simulated_device.lives import lives

    ways = ("cpu", "cuda" if way == "cuda" else "staged")
    names = [f"{family}:{one}" for one in ways]
    told = lives(folder, lines, names, LIMIT_S)
    losses = [[value for kind, value in told[name][0] if kind == "loss"] for name in names]
    apart = max(abs(a - b) for a, b in zip(*losses, strict=True))
    digests = [[value for kind, value in rows if kind == "digest"][:3] for rows in told[names[1]]]
    tolerance = LOW_TOLERANCE if family.startswith("qwen") else TOLERANCE
    return {
        "apart": apart,
        "steps": len(losses[0]),
        "same_digests": digests[0] == digests[1],
        "ok": apart <= tolerance and digests[0] == digests[1],
    }


def attention(way: str) -> Found:
    """Torch's kernels of attention and their memory; the largest term is that of all scores."""
    from tests.unit.worker.ranks import run_ranks

    (cases,) = run_ranks(f"tests.gpu.work:{way}_attends", 1, LIMIT_S)
    near = not has_failed(cases) and all(
        case["apart"] <= (TOLERANCE if name.startswith("fp32") else LOW_TOLERANCE)
        for name, case in cases.items()
    )
    small = way == "dry" or all(
        case.get("peak_bytes", 0) < case.get("scores_bytes", 1)
        for name, case in cases.items()
        if name.startswith("bf16")
    )
    return {"cases": cases, "ok": near and small}


def experts(way: str) -> Found:
    """Whether the products of experts together are those of each alone, forward and backward."""
    from tests.unit.worker.ranks import run_ranks

    (cases,) = run_ranks(f"tests.gpu.work:{way}_groups", 1, LIMIT_S)
    near = not has_failed(cases) and all(
        max(case["apart"].values()) <= (TOLERANCE if name == "fp32" else LOW_TOLERANCE)
        for name, case in cases.items()
    )
    return {"cases": cases, "ok": near}


def engine(way: str) -> Found:
    """An engine alone: one wait a step, and no more memory than the planner's rule allows."""
    from tests.gpu.work import is_finite
    from tests.unit.worker.ranks import run_ranks

    (found,) = run_ranks(f"tests.gpu.work:{way}_trains", 1, LIMIT_S)
    fits = way == "dry" or found["memory_bytes"] <= RESERVE * found["planner_bytes"]
    claims = {
        "finite": is_finite(found["losses"]),
        "one_wait": not any(found["waits"]),
        "fits": fits,
    }
    return found | {"claims": claims, "ok": all(claims.values())}


def job(way: str) -> Found:
    """A job through agents: a rank joins, one leaves, one is killed."""
    from tests.gpu.job import run

    return run(way, PATIENCE)


def profile(way: str) -> Found:
    """A profile of the device, with which a plan is made."""
    from tests.unit.worker.ranks import run_ranks
    from worker.engine.update_digest import UPDATE_DIGEST

    (found,) = run_ranks(f"tests.gpu.work:{way}_profiles", 1, LIMIT_S)
    if "error" in found:
        return found | {"ok": False}
    times = [*found["forward_s"].values(), *found["update"], found["samples_s"]]
    return found | {"ok": found["update_digest"] == UPDATE_DIGEST and min(times) > 0}


CHECKS: dict[str, Callable[[str], Found]] = {
    check.__name__: check
    for check in (
        *(versions, fork, device, wire, update, story, engine, experts, attention),
        *(nccl_alone, nccl_pair, nccl_gone),
        *(job, profile),
    )
}

TWO: dict[str, Callable[[str], Found]] = {
    check.__name__: check for check in (two_rates, two_moves, two_lives)
}


def main(name: str, way: str) -> int:
    """Print one line; 0 if the check holds, or says why it was left out."""
    stacks_before_the_end()
    try:
        found = (CHECKS | TWO)[name](way)
    except Exception as error:
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}"[:500], "ok": False}
    sys.stdout.write(json.dumps({"check": name, "way": way, **found}) + "\n")
    return int(found["ok"] is False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "dry" if "--dry" in sys.argv[2:] else "cuda"))
