"""A real Kubernetes with emulated GPUs on one machine, and faults on command.

Real are kube-apiserver, etcd, controller-manager, scheduler, kubelets, containerd and runc; only
the GPUs are emulated.  All of it runs in namespaces of its own, with no way out and one way in: a
port of this host's loopback for kubectl, Helm and tests.

Invariant: `close` leaves nothing behind; where a tied cluster's program dies, so does every process
of it.  What has to be known is in the folder, so that another program can `open` it.
Source: envtest (a control plane without nodes), kind (nodes as containers), kubenet (routes).
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from tests.cluster.api import NODES, Api, Json, pods
from tests.cluster.assets import Assets, require
from tests.cluster.cgroups import ControlGroup
from tests.cluster.configuration import API_ADDRESS, API_PORT, MAX_NODES, NodeSpec, Wiring
from tests.cluster.control_plane import READY_WITHIN_S, ControlPlane
from tests.cluster.errors import ClusterFailed
from tests.cluster.node import Node
from tests.cluster.processes import Machine, Process, last_lines
from tests.cluster.programs import Programs
from tests.cluster.record import Record

HERE = Path(__file__).parent
_AT_ONCE = 4  # nodes started side by side


class Cluster:
    """A running cluster; `start` or `open` makes one.  It is its own context manager."""

    def __init__(self, folder: Path, record: Record, assets: Assets) -> None:
        self.folder = folder
        self.assets = assets
        self._record = record
        self._group = ControlGroup(record.name)
        self._programs = Programs(folder, assets)
        self._nodes: dict[str, Node] = {}

    @classmethod
    def start(
        cls,
        nodes: Iterable[NodeSpec] = (),
        folder: Path | None = None,
        assets: Assets | None = None,
        tied: bool = True,
    ) -> Cluster:
        """Start a control plane and these nodes, and wait until all GPUs can be had.

        Args:
            folder: its disk, empty or absent; by default a temporary one.  `close` removes it.
            assets: where the binaries are; by default what the environment says.
            tied: its processes die with this program, or rather with the calling thread.

        Raises:
            AssetMissing: no cluster can start here; what is missing, and what provides it.
            ClusterFailed: a part does not start; nothing is left behind.
        """
        assets = assets or Assets.of(os.environ)
        require(assets)
        folder = folder or Path(tempfile.mkdtemp(prefix="heddle-cluster-"))
        folder.mkdir(parents=True, exist_ok=True)
        if Record.exists(folder):
            raise ClusterFailed(f"a cluster is in {folder} already; end it: make cluster-down")
        if any(folder.iterdir()):
            raise ClusterFailed(f"{folder} is not empty; a cluster needs a folder of its own")
        record = Record(name=f"heddle-{secrets.token_hex(4)}", images=[assets.image])
        cluster = cls(folder.resolve(), record, assets)
        try:
            cluster._start(tuple(nodes), tied)
        except BaseException:
            cluster.close()
            raise
        return cluster

    @classmethod
    def open(cls, folder: Path, assets: Assets | None = None) -> Cluster:
        """Take over a cluster that another program started.

        Raises:
            ClusterFailed: no cluster runs there.
        """
        record = Record.read(folder)
        cluster = cls(folder.resolve(), record, assets or Assets.of(os.environ))
        for index in record.nodes:
            cluster._adopt(index)
        return cluster

    def close(self) -> None:
        """End every process, and remove mounts, control groups and the folder."""
        if self._group.exists():
            self._group.thaw()
        machine = self._record.processes.get("machine")
        if machine:
            machine.kill()  # and with it everything in its namespaces
        for process in self._record.processes.values():
            process.kill()
        if self._group.exists():
            self._group.remove()
        shutil.rmtree(self.folder)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file for programs on this host."""
        return self._programs.kubeconfig

    @property
    def kubeconfig_inside(self) -> Path:
        """A kubeconfig file for programs that `spawn` starts."""
        return self._control_plane.kubeconfig_inside

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes, whatever has befallen them."""
        return tuple(self._nodes)

    def is_on(self, node: str) -> bool:
        """Whether the power of a node is on, cut off or not."""
        return self._node(node).is_on

    @property
    def environment(self) -> dict[str, str]:
        """Variables for programs on this host, so that they touch nothing of the user's own."""
        return self._programs.environment

    @property
    def api(self) -> Api:
        """The API server as tests read it."""
        plane = self._control_plane
        return Api(self._record.port, plane.authority.certificate, plane.admin)

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Run kubectl and return what it prints.

        Raises:
            ClusterFailed: it fails and `check` is set; the message has its own.
        """
        return self._programs.run("kubectl", arguments, stdin, check)

    def helm(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Run Helm and return what it prints; raises as `kubectl` does."""
        return self._programs.run("helm", arguments, stdin, check)

    def spawn(
        self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str]
    ) -> Process:
        """Start a program inside, beside the control plane, where it reaches nodes and pods.

        Args:
            log: what it says is appended there.
            environment: variables beside this program's own and KUBECONFIG.
        """
        at = {"KUBECONFIG": str(self.kubeconfig_inside), **environment}
        return self._machine.spawn(command, log, at)

    def forward(self, address: str, port: int) -> int:
        """Forward a new port of this host's loopback to an address inside, and return it."""
        listener = socket.create_server(("127.0.0.1", 0))
        with listener:
            found: int = listener.getsockname()[1]
            name = f"forward-{found}"
            python = [sys.executable, "-I", "-S", str(HERE / "forward.py")]
            command = [*python, str(listener.fileno()), address, str(port)]
            self._record.processes[name] = self._machine.serve(
                command, self.folder / f"{name}.log", listener.fileno()
            )
        self._record.write(self.folder)
        return found

    def load_image_on(self, node: str, archive: Path) -> None:
        """Import an image archive into one node, and forget it when its power fails."""
        self._node(node).load_image(archive)

    def break_network(self, node: str) -> None:
        """Let the network plugin of a node fail at every further pod; the node stays Ready."""
        self._node(node).break_network()

    def load_image(self, archive: Path) -> None:
        """Import an image archive into every node that is on, and each that comes later."""
        kept = self.folder / "images" / f"{len(self._record.images)}.tar"
        kept.parent.mkdir(exist_ok=True)
        shutil.copy(archive, kept)
        self._record.images.append(kept)
        for node in self._nodes.values():
            if node.is_on:
                node.load_image(kept)
        self._record.write(self.folder)

    def add_node(
        self, name: str, gpus: int = 4, gpu_type: str = "demo-fast", wait: bool = True
    ) -> None:
        """Let a node join, and wait until its GPUs can be had.

        Raises:
            ClusterFailed: the name is taken, or the node does not come up.
        """
        self._boot((NodeSpec(name, gpus, gpu_type),))
        if wait:
            self.wait_for_nodes(name)

    def power_off(self, node: str) -> None:
        """Fail the power of a node: its cable falls silent, then all its processes are gone."""
        self._node(node).power_off()
        self._record.write(self.folder)

    def cut(self, node: str) -> None:
        """Cut the cable of a node, in silence; its pods go on."""
        self._node(node).cut()

    def cut_api(self, node: str) -> None:
        """Cut a node and its pods off the API server only."""
        self._node(node).cut_api()

    def cut_peers(self, node: str) -> None:
        """Cut a node and its pods off all other nodes; the API server stays in reach."""
        self._node(node).cut_peers()

    def isolate_data_plane(self) -> None:
        """Cut all nodes off each other; all stay Ready."""
        for node in self._nodes.values():
            node.cut_peers()

    def heal_data_plane(self) -> None:
        """Undo every cut of every node."""
        for node in self._nodes.values():
            node.reconnect()

    def heal(self, node: str) -> None:
        """Undo every cut, and switch the power on if it is off; does not wait for Ready."""
        found = self._node(node)
        found.reconnect()
        if not found.is_on:
            found.power_on(self._record.images)
            found.start_kubelet()
            self._record.write(self.folder)

    def sick_gpu(self, node: str, index: int) -> None:
        """Let a GPU fall sick: the node's allocatable falls, its capacity stays."""
        found = self._node(node)
        if not 0 <= index < found.spec.gpus:
            raise ClusterFailed(f"node {node} has GPUs 0 to {found.spec.gpus - 1}, no {index}")
        found.set_sick_gpus(sorted({*found.sick_gpus(), index}))

    def heal_gpus(self, node: str) -> None:
        """Make all GPUs of a node well."""
        self._node(node).set_sick_gpus(())

    def stop_kubelet(self, node: str) -> None:
        """Kill a node's kubelet; its pods go on, and the node becomes NotReady."""
        self._node(node).stop_kubelet()

    def start_kubelet(self, node: str) -> None:
        """Start a node's kubelet again."""
        self._node(node).start_kubelet()
        self._record.write(self.folder)

    def restart_kubelet(self, node: str) -> None:
        """Kill a node's kubelet and start it; it knows no GPU until the plugin has registered."""
        self.stop_kubelet(node)
        self.start_kubelet(node)

    def freeze(self, pod: str, namespace: str = "default") -> None:
        """Stop all processes of a pod where they are: a stuck rank, whose pod looks Running."""
        self._freeze(pod, namespace, frozen=True)

    def thaw(self, pod: str, namespace: str = "default") -> None:
        """Let a frozen pod go on."""
        self._freeze(pod, namespace, frozen=False)

    def stop_controllers(self) -> None:
        """Kill controller-manager and scheduler for good, where a test plays their part."""
        self._control_plane.stop_controllers()

    def stop_api_server(self) -> None:
        """Kill the API server; nodes and pods go on."""
        self._control_plane.stop_api_server()

    def start_api_server(self) -> None:
        """Start the API server again and wait until it is ready."""
        self._control_plane.restart_api_server(self.api)
        self._record.write(self.folder)

    def wait_for_nodes(self, *names: str, timeout_s: float = READY_WITHIN_S) -> None:
        """Wait until these nodes, or all that are on, are Ready with all their healthy GPUs.

        Raises:
            ClusterFailed: they are not within the time; the message ends with a kubelet's log.
        """
        awaited = [self._node(name) for name in names or self._nodes if self._node(name).is_on]

        def ready(seen: Mapping[str, Json]) -> bool:
            return all(node.name in seen and node.is_shown_by(seen[node.name]) for node in awaited)

        try:
            self.api.wait(NODES, ready, timeout_s, "nodes that are Ready with their GPUs")
        except ClusterFailed as error:
            logs = (f"{node.name}: {last_lines(node.folder / 'kubelet.log')}" for node in awaited)
            raise ClusterFailed(f"{error}; {'; '.join(logs)}") from error

    @property
    def _machine(self) -> Machine:
        return Machine(self._record.processes["machine"])

    @property
    def _control_plane(self) -> ControlPlane:
        return ControlPlane(self.folder, self._machine, self.assets, self._record.processes)

    def _start(self, nodes: Sequence[NodeSpec], tied: bool) -> None:
        self._record.write(self.folder)
        environment = {"FOLDER": str(self.folder), "API_ADDRESS": API_ADDRESS}
        log = self.folder / "machine.log"
        machine = Machine.start(HERE / "machine.sh", environment, log, tied)
        self._record.processes["machine"] = machine.first
        self._record.write(self.folder)
        self._group.create()
        plane = self._control_plane
        plane.start_server()
        self._record.port = self.forward(API_ADDRESS, API_PORT)
        plane.write_kubeconfig(self.kubeconfig, f"https://127.0.0.1:{self._record.port}")
        self._boot(nodes, before_kubelets=lambda: plane.start_controllers(self.api))
        self.wait_for_nodes()
        # Pods are forbidden until their account exists, which is after the nodes are Ready.
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        self.api.wait(
            accounts, lambda seen: "default" in seen, READY_WITHIN_S, "the default ServiceAccount"
        )

    def _boot(
        self, specs: Sequence[NodeSpec], before_kubelets: Callable[[], None] = lambda: None
    ) -> None:
        """Start nodes side by side; their kubelets once `before_kubelets` has returned."""
        nodes = []
        for spec in specs:
            if spec.name in self._nodes:
                raise ClusterFailed(f"there is a node {spec.name} already; give it another name")
            index = len(self._nodes) + 1
            if index > MAX_NODES:
                raise ClusterFailed(f"a cluster has at most {MAX_NODES} nodes")
            self._record.nodes[index] = spec
            nodes.append(self._adopt(index))

        def start(node: Node) -> None:
            node.prepare(self._control_plane.authority)
            node.power_on(self._record.images)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            started = [pool.submit(start, node) for node in nodes]
            before_kubelets()
            for node, future in zip(nodes, started, strict=True):
                future.result()
                node.start_kubelet()
        self._record.write(self.folder)

    def _adopt(self, index: int) -> Node:
        spec = self._record.nodes[index]
        node = Node(
            spec=spec,
            wiring=Wiring(index),
            folder=self.folder / "nodes" / spec.name,
            group=ControlGroup(f"{self._record.name}/{spec.name}"),
            machine=self._machine,
            assets=self.assets,
            processes=self._record.processes,
        )
        self._nodes[spec.name] = node
        return node

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            raise ClusterFailed(f"no node {name}; there are {', '.join(self._nodes) or 'none'}")
        return self._nodes[name]

    def _freeze(self, pod: str, namespace: str, frozen: bool) -> None:
        found = self.api.get(f"{pods(namespace)}/{pod}")
        node = self._node(found["spec"]["nodeName"])
        node.group.freeze_pod(found["metadata"]["uid"], frozen)
