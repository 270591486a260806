"""The command line of the harness: `python -m tests.cluster`.

Invariant: an error that a user can cause ends in one sentence on stderr and exit code 2.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from planner.program import run
from tests.cluster.assets import KUBERNETES_VERSION, Assets
from tests.cluster.build import build_assets
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.cluster.installation import OPERATOR_NODE, Installation
from tests.cluster.record import Record

ROOT = Path(__file__).parents[2]
NODES = ("n1:4:demo-fast", "n2:4:demo-fast", "n3:4:demo-slow")
FAULTS: dict[str, tuple[Callable[[Cluster, str], None], str]] = {
    "power-off": (Cluster.power_off, "Fail the power of a node."),
    "cut": (Cluster.cut, "Cut the cable of a node; its pods go on."),
    "cut-api": (Cluster.cut_api, "Cut a node off the API server only."),
    "cut-peers": (Cluster.cut_peers, "Cut a node off the other nodes only."),
    "restart-kubelet": (Cluster.restart_kubelet, "Kill and start a node's kubelet."),
    "heal": (Cluster.heal, "Undo every cut of a node; switch its power on."),
}

at = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=ROOT / ".cache" / "cluster",
    help="Where the cluster keeps everything; by default .cache/cluster of the repository.",
)


class NodeType(click.ParamType[NodeSpec]):
    """A node as one writes it on the command line."""

    name = "NAME:GPUS:TYPE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> NodeSpec:
        """Read it; says what is wrong with it and what would be right."""
        if isinstance(value, NodeSpec):
            return value
        name, _, rest = str(value).partition(":")
        gpus, _, gpu_type = rest.partition(":")
        if not (name and gpus.isdigit() and gpu_type):
            self.fail(f"{value} is not NAME:GPUS:TYPE, such as n1:4:demo-fast", param, ctx)
        return NodeSpec(name, int(gpus), gpu_type)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cluster() -> None:
    """A real Kubernetes with emulated GPUs on this machine, in namespaces of its own."""


@cluster.command()
def assets() -> None:
    """Build the binaries of Kubernetes, once."""
    found = Assets.of(os.environ)
    build_assets(found, say=click.echo)
    click.echo(f"The binaries of Kubernetes are in {found.root}.")


@cluster.command()
@at
@click.option(
    "--node",
    "nodes",
    multiple=True,
    default=NODES,
    type=NodeType(),
    help=f"A node; may be repeated. By default {' '.join(NODES)}.",
)
def up(folder: Path, nodes: tuple[NodeSpec, ...]) -> None:
    """Start a cluster that stays until it is told to end."""
    started = time.monotonic()
    made = Cluster.start(nodes, folder, tied=False)
    took_s = time.monotonic() - started
    command = f"{sys.executable} -m tests.cluster"
    click.echo(
        f"Kubernetes {KUBERNETES_VERSION} with {len(nodes)} nodes of emulated GPUs is up, "
        f"{took_s:.1f} s. Use it:\n"
        f"{_exports(made)}\n"
        "  kubectl get nodes --label-columns nvidia.com/gpu.product\n"
        "Install Heddle of this checkout, or bring an image that its nodes cannot pull:\n"
        f"  {command} install\n"
        f"  {command} load-image ARCHIVE.tar\n"
        "Let things happen to it:\n"
        f"  {command} add n4:2:demo-slow\n"
        f"  {command} {'|'.join(FAULTS)} n2\n"
        f"  {command} sick-gpu n1 0\n"
        "End it, leaving nothing behind: make cluster-down"
    )


@cluster.command()
@at
def down(folder: Path) -> None:
    """End the cluster; nothing of it is left."""
    if not Record.exists(folder):
        click.echo(f"No cluster runs in {folder}.")
        return
    Cluster.open(folder).close()
    click.echo("The cluster has ended; nothing of it is left.")


@cluster.command()
@at
def install(folder: Path) -> None:
    """Install Heddle of this checkout by its chart, or upgrade it."""
    running = Cluster.open(folder)
    installation = Installation(running)
    if OPERATOR_NODE.name not in running.nodes:
        click.echo(f"Node {OPERATOR_NODE.name} joins, for the operator; it has no GPUs.")
        running.add_node(OPERATOR_NODE.name, OPERATOR_NODE.gpus)
    installation.install_or_upgrade()
    heddle = Path(sys.executable).parent
    click.echo(
        "The operator runs; its pods and those of jobs are this checkout, mounted read-only.\n"
        f"{_exports(running)}:{heddle}\n"
        f"  kubectl apply --filename {ROOT / 'manifests' / 'examples' / 'tiny.yaml'}\n"
        "  kubectl get heddlejobs --watch\n"
        "  heddle status tiny\n"
        "  heddle logs tiny\n"
        f"  kubectl logs {installation.operator} --follow\n"
        "docs/kubernetes.md tells what to watch. After a change of the code, the same again, then\n"
        f"  kubectl rollout restart {installation.operator}"
    )


@cluster.command("load-image")
@at
@click.argument("archive", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def load_image(folder: Path, archive: Path) -> None:
    """Import the image of ARCHIVE, as `docker save` writes it, into every node."""
    Cluster.open(folder).load_image(archive)
    click.echo("Every node has the image; use it with imagePullPolicy: IfNotPresent or Never.")


@cluster.command()
@at
@click.argument("node", type=NodeType())
def add(folder: Path, node: NodeSpec) -> None:
    """Let NODE join, and wait until its GPUs can be had."""
    Cluster.open(folder).add_node(node.name, node.gpus, node.gpu_type)


@cluster.command("sick-gpu")
@at
@click.argument("node")
@click.argument("index", type=int)
def sick_gpu(folder: Path, node: str, index: int) -> None:
    """Let the GPU with this index fall sick."""
    Cluster.open(folder).sick_gpu(node, index)


def _exports(running: Cluster) -> str:
    """The line with which a shell reaches the cluster; more folders may follow it."""
    names = ("kubectl", "helm")
    folders = dict.fromkeys(str(running.assets.path(name).parent) for name in names)
    return f"  export KUBECONFIG={running.kubeconfig} PATH=$PATH:{':'.join(folders)}"


def _fault(name: str, act: Callable[[Cluster, str], None], text: str) -> None:
    @cluster.command(name, help=text)
    @at
    @click.argument("node")
    def command(folder: Path, node: str) -> None:
        act(Cluster.open(folder), node)


for _name, (_act, _help) in FAULTS.items():
    _fault(_name, _act, _help)


def main() -> None:
    """Run the command; never a traceback for what a user did."""
    try:
        run(cluster)
    except OSError as error:  # a folder that cannot be made, a disk that is full
        click.echo(f"Error: {error.strerror or error}: {error.filename}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
