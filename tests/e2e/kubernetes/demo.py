"""`make demo-kubernetes`: a job survives what happens to its nodes, on a real Kubernetes.

It does what a newcomer would: starts a cluster, installs the chart, applies the example, and then
lets nodes join, be drained and lose their power, saying each command and what the job says to it.
Invariant: whatever happens, the cluster is gone at the end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import click
import yaml
from rich.console import Console

from planner.program import run
from tests.cluster.assets import KUBERNETES_VERSION
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.cluster.host_mounts import ROOT, host_mounts
from tests.cluster.installation import OPERATOR_NODE, Installation, heddle_command
from tests.e2e.kubernetes.job import JOBS, Job, Json

EXAMPLE = ROOT / "manifests" / "examples" / "tiny.yaml"
FIRST = (NodeSpec("n1", 1), NodeSpec("n2", 2))
THIRD = NodeSpec("n3", 3)
WITHIN_S = 600.0  # for one change; many times what it takes
STEPS_BETWEEN = 15  # trained in peace between two events
DRAIN = ("drain", "n1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=200s")


class Demo:
    """One run of the scenario.

    Args:
        cluster: with the first nodes and one for the operator.
        console: told everything.
    """

    def __init__(self, cluster: Cluster, console: Console) -> None:
        self._cluster = cluster
        self._console = console
        self._started_s = time.monotonic()
        self._said = ("", "")
        self._job = Job(cluster, yaml.safe_load(EXAMPLE.read_text())["metadata"]["name"])

    def run(self) -> None:
        """The whole scenario.

        Raises:
            ClusterFailed: something did not come in time; the message says where the job stands.
        """
        self._kubectl("get", "nodes", "--label-columns", "nvidia.com/gpu.product")
        self._title("Heddle is installed by its chart, and a job applied")
        self._console.print("$ helm install heddle charts/heddle", style="bold")
        Installation(self._cluster).install()
        self._kubectl("apply", "--filename", str(EXAMPLE.relative_to(ROOT)))
        self._until_on("n1", "n2")
        self._title(f"A node joins: {THIRD.name}, with {THIRD.gpus} GPUs")
        self._cluster.add_node(THIRD.name, THIRD.gpus, THIRD.gpu_type)
        self._until_on("n1", "n2", "n3")
        self._title("A node is drained: its pods may go once the state has moved")
        before = self._status()["epoch"]
        self._kubectl("cordon", "n1")
        draining = self._start_drain()
        self._until(lambda status: "n1" not in status.get("nodes", ()), "training without n1")
        self._until_moved(before)
        self._console.print(draining.communicate()[0].strip())
        self._title("A node loses its power: no notice, no answer")
        before = self._status()["epoch"]
        self._cluster.power_off("n2")
        failed_s = time.monotonic()
        self._until(lambda status: status.get("nodes") == ["n3"], "training on n3 alone")
        self._console.print(f"n3 goes on alone {time.monotonic() - failed_s:.1f} s after that.")
        self._until_moved(before)
        self._title("What is left to train")
        status = self._until(lambda status: status.get("phase") == "Complete", "completion")
        self._kubectl("events", f"--for=heddlejob/{self._job.name}")
        progress = status["progress"]
        self._console.print(
            f"All {progress['steps']} steps are trained, each once; the last loss is "
            f"{progress.get('loss', float('nan')):.4f}. The job was never restarted and read no "
            "checkpoint: a node joined, one was drained, one lost its power.\n"
            "Go on: make cluster gives you this cluster to play with; docs/kubernetes.md tells "
            "what to watch."
        )

    def _until_on(self, *nodes: str) -> None:
        self._until(
            lambda status: (
                status.get("phase") == "Running" and status.get("nodes") == sorted(nodes)
            ),
            f"training on {', '.join(nodes)}",
        )
        self._train_on()

    def _until_moved(self, epoch: int) -> None:
        self._until(
            lambda status: status.get("phase") == "Running" and status.get("epoch", 0) > epoch,
            "the next epoch",
        )
        self._train_on()

    def _train_on(self) -> None:
        """Show the job's page once it has trained a little in its new shape."""
        wanted = self._status().get("progress", {}).get("step", 0) + STEPS_BETWEEN
        self._until(
            lambda status: status.get("progress", {}).get("step", 0) >= wanted, "more steps"
        )
        self._console.print(f"$ heddle status {self._job.name}", style="bold")
        command = [*heddle_command(host_mounts()), "status", self._job.name]
        said = subprocess.run(
            command, capture_output=True, text=True, check=False, env=self._cluster.environment
        )
        shown = said.stdout.partition("  conditions:")[0] or said.stderr
        self._console.print(shown.rstrip())

    def _until(self, claim: Callable[[Json], bool], what: str) -> Json:
        """Wait, and say each change of what the job says of itself."""

        def look(status: Json) -> bool:
            said = (str(status.get("phase", "")), str(status.get("message", "")))
            if said != self._said and said[0]:
                self._said = said
                elapsed_s = time.monotonic() - self._started_s
                self._console.print(f"  {elapsed_s:5.1f} s  {said[0]:<11} {said[1]}", style="dim")
            return claim(status)

        status: Json = self._job.wait(look, what, WITHIN_S)["status"]
        return status

    def _status(self) -> Json:
        status: Json = self._cluster.api.get(f"{JOBS}/{self._job.name}").get("status") or {}
        return status

    def _start_drain(self) -> subprocess.Popen[str]:
        self._console.print(f"$ kubectl {' '.join(DRAIN)}", style="bold")
        return subprocess.Popen(
            [self._cluster.assets.path("kubectl"), *DRAIN],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._cluster.environment,
        )

    def _kubectl(self, *arguments: str) -> None:
        self._console.print(f"$ kubectl {' '.join(arguments)}", style="bold")
        self._console.print(self._cluster.kubectl(*arguments).rstrip())

    def _title(self, text: str) -> None:
        self._console.print(f"\n{text}", style="bold cyan")


@click.command()
def main() -> None:
    """Install Heddle on a real Kubernetes with emulated GPUs, and let things happen to a job."""
    console = Console(soft_wrap=True, markup=False, highlight=False)
    console.print(
        f"Starting Kubernetes {KUBERNETES_VERSION} in namespaces of its own: API server, kubelets "
        "and containers are real, the GPUs are emulated.",
    )
    try:
        with Cluster.start((OPERATOR_NODE, *FIRST)) as cluster:
            Demo(cluster, console).run()
    except KeyboardInterrupt:
        click.echo("Stopped; the cluster has ended, nothing of it is left.", err=True)
        sys.exit(130)


if __name__ == "__main__":
    run(main)
