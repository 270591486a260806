"""A change that finds no free port, in a network of its own, so that other tests find theirs.

    unshare --net python -m tests.distributed.errors.few_ports FOLDER DATA

Prints, as JSON, what the ranks said and how far they came.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from planner.plans.plan import Plan
from tests.distributed.pods import Pods, place, template
from worker.contract import Report, TrainingSpec

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # of this network alone
FEW = "50000 50003"  # each of four ranks takes more than one
OLD_GPUS = (0, 1)
LIMIT_S = 60.0


def plan(replicas: int) -> Plan:
    """Pipelines of two stages on neighbouring GPUs."""
    gpus = [("a", gpu) for gpu in range(2 * replicas)]
    return place((template("1x3+1x3", 2, *(4 // replicas,) * replicas),), gpus)


def main(folder: Path, data: str) -> None:
    """Train, fail to grow while ports are few, train on, and grow."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    spec = TrainingSpec(
        model="tiny-llama",
        data=data,
        global_batch=8,
        sequence_length=32,
        steps=100_000,
        warmup_steps=0,
    )
    pods = Pods(folder)
    try:
        pods.start("a")
        pods.change(pods.directive(1, plan(1), spec, "a", reason="start"))
        held = {"holds": {("a", gpu): 1 for gpu in OLD_GPUS}, "layouts": {1: plan(1)}}
        change = pods.directive(2, plan(2), spec, "a", **held)  # type: ignore[arg-type]
        many = RANGE.read_text()
        RANGE.write_text(FEW)
        pods.send(change)
        _await(folder / "a.log", "could not be prepared")  # a look over HTTP would take a port
        RANGE.write_text(many)
        failed = pods.pods["a"].wait(_tells_whose_fault)
        pods.send(change.model_copy(update={"phase": "abort"}))
        step = max(rank.step for rank in failed.ranks)
        later = pods.pods["a"].wait(lambda report: _trained(report, step + 5))
        pods.change(pods.directive(3, plan(2), spec, "a", **held))  # type: ignore[arg-type]
        kinds = [[r.slot, r.phase, r.error_kind, r.error] for r in failed.ranks]
        trains = [[r.slot, r.phase, r.epoch] for r in later.ranks]
        print(json.dumps({"failed": kinds, "later": trains}))
    finally:
        pods.close()


def _tells_whose_fault(report: Report) -> bool:
    """Whether a rank that found no port has said so: its peers, who lose it, may say so before."""
    kinds = {rank.error_kind for rank in report.ranks if rank.failed_epoch == 2}
    return bool(kinds - {"lost peer"})


def _trained(report: Report, step: int) -> bool:
    """The old ranks have come to a step, and they alone are left."""
    slots = tuple(rank.slot for rank in report.ranks)
    return slots == OLD_GPUS and all(rank.step >= step for rank in report.ranks)


def _await(log: Path, words: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while words not in log.read_text():
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
