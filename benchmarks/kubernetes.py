"""Measure how soon a job on Kubernetes follows its nodes, and what each change costs.

A real control plane and real kubelets on this machine, the chart's operator as a pod, emulated
GPUs.  Each repeat starts a job on one node, lets a second one join, leave, come back and lose its
power.  Writes the median and the maximum to `docs/results/`, with the command, the date and the
machine.  `python -m benchmarks.kubernetes [--repeats N]`; needs root and `make kube-assets`.

All times are by the monotonic clock of the one machine that everything runs on.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from benchmarks.pages import ROOT, header
from tests.cluster.api import NODES, Json, condition, gpus
from tests.cluster.assets import KUBERNETES_VERSION
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NOT_READY_AFTER_S, NodeSpec
from tests.cluster.installation import OPERATOR_NODE, Installation
from tests.e2e.kubernetes.job import WITHIN_S, Job, job_body
from tests.e2e.kubernetes.listener import Listener

GPU_TYPE = "demo-slow"
MEASURES = ("planner", "migration", "worker", "heddle_operator")
LEAVING = "heddle.dev/draining"
Samples = defaultdict[str, list[float]]


class Run:
    """One job's story.

    Args:
        number: of the repeat; names job and node.
        seconds: takes what is measured, by what it is.
        parts: takes the stall of each change by its reason and part.
    """

    def __init__(
        self, cluster: Cluster, number: int, seconds: Samples, parts: dict[str, Samples]
    ) -> None:
        self.cluster = cluster
        self.node = f"joiner-{number}"
        self.job = Job(cluster, f"bench-{number}")
        self._seconds = seconds
        self._parts = parts

    def story(self) -> None:
        """Start, join, drain, join again, lose; then clear up."""
        since_s = time.monotonic()
        Job.apply(self.cluster, job_body(self.job.name))
        with Listener(self.job) as heard:
            self.job.wait_until_on("n1")
            heard.wait_for_steps(3)
            self._seconds["apply to first step"].append(heard.first_step_s(1) - since_s)
            self._change(heard, "node joins", "join", self._join, (self.node, "n1"))
            self._change(heard, "node is to leave", "drain", self._leave, ("n1",))
            self._change(heard, "node may stay", "join", self._stay, (self.node, "n1"))
            self._change(heard, "power fails", "loss", self._power_off, ("n1",))
        self.cluster.kubectl("delete", "node", self.node)
        self.job.delete()

    def _change(self, heard: Listener, what: str, reason: str, event, nodes) -> None:
        since_s = event()
        epoch = self.job.wait_until_on(*nodes)["epoch"]
        heard.wait_for_steps(3)
        status = self.job.wait(
            lambda status: status.get("lastReconfiguration", {}).get("epoch", 0) >= epoch,
            "a measured change",
        )["status"]
        record = self.job.epochs()[epoch]
        if record["reason"] != reason:
            raise SystemExit(f"epoch {epoch} should be a {reason}, it is a {record['reason']}")
        adopted_s = float(record["adoptedAt"]) - (time.time() - time.monotonic())
        self._seconds[f"{what}: plan adopted"].append(adopted_s - since_s)
        told_s = heard.told_s[epoch, "prepare"]
        self._seconds[f"{what}: first directive"].append(told_s - since_s)
        self._seconds[f"{what}: first step of the new plan"].append(
            heard.first_step_s(epoch) - since_s
        )
        last = status["lastReconfiguration"]
        self._parts[reason]["stall"].append(last["stallSeconds"])
        for name, part_s in last["parts"].items():
            self._parts[reason][name.removesuffix("_s")].append(part_s)

    def _join(self) -> float:
        self.cluster.add_node(self.node, 2, GPU_TYPE, wait=False)

        def joined(seen: Mapping[str, Json]) -> bool:
            node = seen.get(self.node)
            return node is not None and condition(node, "Ready") == "True" and gpus(node) == 2

        self.cluster.api.wait(NODES, joined, WITHIN_S, f"{self.node} Ready with its GPUs")
        return time.monotonic()

    def _leave(self) -> float:
        self.cluster.kubectl("annotate", "node", self.node, f"{LEAVING}=maintenance")
        return time.monotonic()

    def _stay(self) -> float:
        self.job.wait_for_pods(lambda pods: len(pods) == 1, "the old pod to be gone")
        self.cluster.kubectl("annotate", "node", self.node, f"{LEAVING}-")
        return time.monotonic()

    def _power_off(self) -> float:
        since_s = time.monotonic()
        self.cluster.power_off(self.node)
        return since_s


def measure(repeats: int) -> tuple[Samples, dict[str, Samples]]:
    """All samples, in seconds."""
    seconds: Samples = defaultdict(list)
    parts: dict[str, Samples] = defaultdict(lambda: defaultdict(list))
    with Cluster.start([OPERATOR_NODE, NodeSpec("n1", 2, GPU_TYPE)]) as cluster:
        Installation(cluster).install()
        for number in range(1, repeats + 1):
            print(f"run {number} of {repeats}", file=sys.stderr, flush=True)
            Run(cluster, number, seconds, parts).story()
    return seconds, parts


def report(seconds: Samples, parts: Mapping[str, Samples], repeats: int) -> str:
    """The result file."""
    events = "\n".join(
        f"| {what} | {statistics.median(found):.2f} | {max(found):.2f} |"
        for what, found in seconds.items()
    )
    reasons = list(parts)
    names = list(dict.fromkeys(name for row in parts.values() for name in row))
    head = " | ".join(f"{reason} (n={len(parts[reason]['stall'])})" for reason in reasons)
    rows = "\n".join(
        f"| {name} | " + " | ".join(_cell(parts[reason][name]) for reason in reasons) + " |"
        for name in names
    )
    return f"""# A job on Kubernetes follows its nodes, emulated GPUs

{header(f"python -m benchmarks.kubernetes --repeats {repeats}", MEASURES, ",")}
shared with other work. Kubernetes {KUBERNETES_VERSION}: control plane, kubelets, containerd and
pods are real and all on this machine; the GPUs and their types are emulated, and the model is the
tiny one. A start of a pod is the import of its libraries; there is no image to pull.

From the event to what follows, in seconds, over {repeats} runs. A node joins when the API server
shows it Ready with its GPUs; it is to leave, or may stay, when its annotation is written; its power
fails when its cable falls silent, which Kubernetes sees after {NOT_READY_AFTER_S} s here (its own
default is 40 s) and its peers at their time-out of 10 s. Of several plans that a loss led to, the
one that came to train counts:

| event | median | maximum |
| --- | --- | --- |
{events}

Stall by part, from the end of the last old step to the start of the first new one by the survivors'
clock, in milliseconds, median / maximum; of a loss `detect` is all of the silence:

| part | {head} |
| --- |{" --- |" * len(reasons)}
{rows}
"""


def _cell(found_s: list[float]) -> str:
    return f"{1e3 * statistics.median(found_s):.0f} / {1e3 * max(found_s):.0f}" if found_s else "-"


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description="Measure how a job on Kubernetes follows nodes.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs" / "results" / "kubernetes_emulated.md"
    )
    arguments = parser.parse_args()
    text = report(*measure(arguments.repeats), arguments.repeats)
    arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
