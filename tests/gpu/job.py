"""A job through real agents, each rank on the one GPU: a rank joins, one leaves, one is killed.

Dry, the ranks compute on the processor: a process that an agent forks has a real device or none.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from heddle_operator.inventory.accelerators import canonical
from planner.plans.plan import Plan
from tests.distributed.pods import Pods, place, template
from worker.contract import SwitchRecord, TrainingSpec, resume_of
from worker.data.making.prepare import prepare
from worker.device.gpus import Nvml

WAIT_S = 40.0
LOG_MOST = 20_000  # characters of the log of an agent


def gpu_type() -> str:
    """The type of the GPU that is here, as a node's label would say it."""
    return canonical(Nvml().gpus()[0].name.replace(" ", "-"))


def run(way: str, patience: float) -> dict[str, object]:
    """{change: seconds of its stall by parts} of three agents with a rank each."""
    kind = gpu_type() if way == "cuda" else "demo-fast"
    two = place((template("1x3+1x3", 1, 4, gpu_type=kind),), [("a", 0), ("b", 0)])
    # c holds nothing alone, so that the others go on without it
    whole, halves = template("1x6", 1, 2, gpu_type=kind), template("1x3+1x3", 1, 2, gpu_type=kind)
    three = place((whole, halves), [(name, 0) for name in "abc"])
    with tempfile.TemporaryDirectory() as folder:
        prepare([Path(tempfile.__file__)], Path(folder) / "text")
        spec = TrainingSpec(
            model="tiny-llama",
            data=str(Path(folder) / "text"),
            global_batch=4,
            sequence_length=32,
            steps=100_000,
            verify="Full",
        )
        pods = Pods(Path(folder), options=("--device", "cuda" if way == "cuda" else "cpu"))
        try:
            return _changes(pods, spec, two, three, WAIT_S * patience)
        except BaseException:
            for log in sorted(Path(folder).glob("*.log")):
                sys.stderr.write(f"-- {log.name}\n{log.read_text()[-LOG_MOST:]}\n")
            raise
        finally:
            pods.close()


def _changes(
    pods: Pods, spec: TrainingSpec, two: Plan, three: Plan, limit_s: float
) -> dict[str, object]:
    pods.start("a", "b", "c", gpus=1)
    plans = {1: two, 2: three, 3: two, 4: three}
    reasons = {1: "start", 2: "join", 3: "drain", 4: "join"}
    for epoch, chosen in plans.items():
        before = plans.get(epoch - 1)
        spots = [(one.node, 0) for one in before.placement] if before else []
        pods.change(
            pods.directive(
                epoch,
                chosen,
                spec,
                "a",
                reason=reasons[epoch],
                holds=dict.fromkeys(spots, epoch - 1),
                layouts={epoch - 1: before} if before else {},
            )
        )
        _trains_on(pods, epoch, limit_s)
    pods.kill("c")
    lost_s = time.monotonic()
    halted = [
        pods.pods[name].wait(lambda report: report.ranks[0].phase == "halted", limit_s).ranks[0]
        for name in "ab"
    ]
    noticed_s = time.monotonic() - lost_s
    pods.change(
        pods.directive(
            5,
            two,
            spec,
            "a",
            reason="loss",
            holds={("a", 0): 4, ("b", 0): 4},
            layouts={4: three},
            resume=resume_of(halted),
        )
    )
    _trains_on(pods, 5, limit_s)
    switches = [_told(row) for row in pods.pods["a"].report().switches if row.epoch > 1]
    return {
        "switches": switches,
        "noticed_s": noticed_s,
        "ok": [row["epoch"] for row in switches] == [2, 3, 4, 5]
        and all(row["same_state"] for row in switches),
    }


def _told(row: SwitchRecord) -> dict[str, object]:
    """A switch of pod a: its stall, and when each part ended after the last step."""
    since_s = row.stopped_s or 0.0
    return {
        "epoch": row.epoch,
        "stall_s": (row.first_step_s or 0.0) - since_s,
        "laps_s": {name: at_s - since_s for name, at_s in row.laps.items()},
        "bytes_received": row.bytes_received,
        "same_state": row.state_digest_before == row.state_digest_after is not None,
    }


def _trains_on(pods: Pods, epoch: int, limit_s: float) -> None:
    start = pods.pods["a"].report().ranks[0].step
    pods.pods["a"].wait(
        lambda report: report.ranks[0].epoch == epoch and report.ranks[0].step > start + 5, limit_s
    )
