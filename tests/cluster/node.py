"""One real node: kubelet, containerd and runc in a machine of its own, and what can befall it.

A node is a machine inside the cluster's machine, on a network namespace that outlives it: after a
power failure its cable is still there and silent, so peers get no answer instead of a reset.

Invariant: every fault is undone by `heal`, which may be called at any time.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.api import Json, condition, gpus
from tests.cluster.assets import Assets
from tests.cluster.certificates import Authority
from tests.cluster.cgroups import ControlGroup
from tests.cluster.configuration import (
    API_ADDRESS,
    API_PORT,
    NODES,
    PODS,
    NodeSpec,
    Wiring,
    containerd_configuration,
    kubeconfig,
    kubelet_configuration,
    kubelet_flags,
    pod_network,
)
from tests.cluster.errors import ClusterFailed
from tests.cluster.processes import Machine, Process, last_lines

HERE = Path(__file__).parent
_SOCKET = "run/containerd/containerd.sock"
_CONTAINERD_WITHIN_S = 30.0
_LOOK_AGAIN_S = 0.05
_DROP_ALL = ("root", "pfifo", "limit", "0")  # a queue of no length: what is sent is lost in silence
_DROP_NONE = ("root", "noqueue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the cluster.

    Args:
        folder: its disk, configuration and logs.
        machine: the cluster's machine, which holds the other end of the cable.
        processes: those of the whole cluster by name; the node's begin with its name.
    """

    spec: NodeSpec
    wiring: Wiring
    folder: Path
    group: ControlGroup
    machine: Machine
    assets: Assets
    processes: MutableMapping[str, Process]

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_on(self) -> bool:
        """Whether the machine of the node runs."""
        first = self.processes.get(f"{self.name}/machine")
        return first is not None and first.alive()

    def prepare(self, authority: Authority) -> None:
        """Write the configuration and lay the cable."""
        for name in ("cni", "certificates"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        subject = f"/O=system:nodes/CN=system:node:{self.name}"
        identity = authority.issue(f"node-{self.name}", subject)
        runc, plugins = self.assets.path("runc"), self.assets.runtime
        files = {
            "kubeconfig": kubeconfig(f"https://{API_ADDRESS}:{API_PORT}", authority, identity),
            "kubelet.yaml": kubelet_configuration(authority, self.group.path),
            "cni/pods.conflist": pod_network(self.wiring, self.folder / "leases"),
            "containerd.toml": containerd_configuration(
                plugins, self.folder / "cni", runc, _snapshotter(self.folder)
            ),
            "sick-gpus": "",
        }
        for name, text in files.items():
            (self.folder / name).write_text(text)
        wiring, cable = self.wiring, self.wiring.cable
        self.machine.run("ip", "netns", "add", self.name)
        self._ip(
            f"link add {cable} type veth peer name up0 netns {self.name}",
            f"addr add {wiring.machine_address}/31 dev {cable}",
            f"link set {cable} up",
        )
        self._ip(
            f"addr add {wiring.node_address}/31 dev up0",
            "link set up0 up",
            f"route add default via {wiring.machine_address}",
            inside=True,
        )
        self._ip(f"route add {wiring.pods} via {wiring.node_address}")

    def power_on(self, images: Sequence[Path]) -> None:
        """Start the machine, containerd with these images, and the GPU plugin; no kubelet yet.

        Raises:
            ClusterFailed: one of them does not start; the message ends with its log.
        """
        self.group.create()
        environment = {"FOLDER": str(self.folder)}
        log = self.folder / "machine.log"
        machine = self.machine.start_inside(HERE / "node.sh", environment, log, self.name)
        self.processes[f"{self.name}/machine"] = machine.first
        containerd = [self.assets.path("containerd"), "-c", self.folder / "containerd.toml"]
        # containerd finds its shim on the PATH.
        path = {"PATH": f"{self.assets.containerd}:/usr/sbin:/usr/bin:/sbin:/bin"}
        self._spawn("containerd", [str(part) for part in containerd], path)
        self._wait_for_containerd()
        for image in images:
            self.load_image(image)
        if self.spec.gpus:
            flags = [f"--gpus={self.spec.gpus}", f"--sick-file={self.folder / 'sick-gpus'}"]
            self._spawn("gpu_plugin", [str(self.assets.path("gpu_plugin")), *flags])

    def start_kubelet(self) -> None:
        """Start the kubelet, which registers the node."""
        files = [f"--config={self.folder}/kubelet.yaml", f"--kubeconfig={self.folder}/kubeconfig"]
        flags = kubelet_flags(self.spec, self.wiring)
        self._spawn("kubelet", [str(self.assets.path("kubelet")), *files, *flags])

    def stop_kubelet(self) -> None:
        """Kill the kubelet; the pods go on."""
        self.processes[f"{self.name}/kubelet"].kill()

    def load_image(self, archive: Path) -> None:
        """Import an image archive, unless this disk has it from before a power failure."""
        imported = self.folder / "imported" / archive.name
        if not imported.exists():
            ctr = (self.assets.path("ctr"), "--namespace=k8s.io", "images", "import", archive)
            self._own_machine().run(*ctr)
            imported.parent.mkdir(exist_ok=True)
            imported.touch()

    def break_network(self) -> None:
        """Let a file lie where the network plugin keeps its leases, before it has made any."""
        (self.folder / "leases").touch(exist_ok=False)

    def cut(self) -> None:
        """Lose every packet in both directions, without a sign of it at either end."""
        self.machine.run("tc", "qdisc", "replace", "dev", self.wiring.cable, *_DROP_ALL)
        self.machine.run("tc", "-n", self.name, "qdisc", "replace", "dev", "up0", *_DROP_ALL)

    def cut_api(self) -> None:
        """Lose what the node and its pods send to the API server, and nothing else."""
        self._ip(f"route replace blackhole {API_ADDRESS}/32", inside=True)

    def cut_peers(self) -> None:
        """Lose what the node and its pods send to other nodes and their pods, and nothing else."""
        self._ip(*(f"route replace blackhole {network}" for network in (NODES, PODS)), inside=True)

    def reconnect(self) -> None:
        """Undo every cut."""
        self._ip("route flush type blackhole", inside=True)
        self.machine.run("tc", "-n", self.name, "qdisc", "replace", "dev", "up0", *_DROP_NONE)
        self.machine.run("tc", "qdisc", "replace", "dev", self.wiring.cable, *_DROP_NONE)

    def power_off(self) -> None:
        """Cut the cable, then kill everything at once: a mere kill would still send resets."""
        self.cut()
        self.group.thaw()
        self.processes[f"{self.name}/machine"].kill()
        for name in ("containerd", "gpu_plugin", "kubelet"):
            process = self.processes.pop(f"{self.name}/{name}", None)
            if process:
                process.kill()  # dead already; this reaps its launcher
        self.group.remove()  # groups left over would delay the next start by half a minute

    def set_sick_gpus(self, indices: Sequence[int]) -> None:
        """Report exactly these GPUs unhealthy."""
        partial = self.folder / "sick-gpus.new"
        partial.write_text("".join(f"emulated-gpu-{index}\n" for index in indices))
        partial.rename(self.folder / "sick-gpus")

    def sick_gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs reported unhealthy."""
        listed = (self.folder / "sick-gpus").read_text().split()
        return tuple(int(gpu.rpartition("-")[2]) for gpu in listed)

    def is_shown_by(self, resource: Json) -> bool:
        """Whether the API's Node is this one since its last boot, Ready with its healthy GPUs."""
        boot_id = (self.folder / "proc" / "kernel.random.boot_id").read_text().strip()
        return (
            condition(resource, "Ready") == "True"
            and resource["status"]["nodeInfo"]["bootID"] == boot_id
            and gpus(resource) == self.spec.gpus - len(self.sick_gpus())
        )

    def _own_machine(self) -> Machine:
        if not self.is_on:
            raise ClusterFailed(f"node {self.name} is off; heal it first")
        return Machine(self.processes[f"{self.name}/machine"])

    def _spawn(
        self, name: str, command: list[str], environment: dict[str, str] | None = None
    ) -> None:
        log = self.folder / f"{name}.log"
        process = self._own_machine().spawn(command, log, environment)
        self.processes[f"{self.name}/{name}"] = process

    def _ip(self, *commands: str, inside: bool = False) -> None:
        where = ("-n", self.name) if inside else ()
        self.machine.run("ip", *where, "-batch", "-", stdin="\n".join(commands))

    def _wait_for_containerd(self) -> None:
        """Wait until its socket accepts, which it does once all its plugins run."""
        machine = self.processes[f"{self.name}/machine"]
        process = self.processes[f"{self.name}/containerd"]
        deadline = time.monotonic() + _CONTAINERD_WITHIN_S
        while time.monotonic() < deadline and process.alive():
            with socket.socket(socket.AF_UNIX) as trial:
                try:
                    trial.connect(f"/proc/{machine.pid}/root/{_SOCKET}")
                except OSError:
                    time.sleep(_LOOK_AGAIN_S)
                else:
                    return
        log = self.folder / "containerd.log"
        raise ClusterFailed(f"containerd of {self.name} does not start: {last_lines(log)}")


def _snapshotter(folder: Path) -> str:
    """How containerd keeps images: overlays, unless the disk is an overlay itself."""
    found = subprocess.run(
        ["stat", "--file-system", "--format=%T", folder], capture_output=True, text=True, check=True
    )
    return "native" if found.stdout.strip() == "overlayfs" else "overlayfs"
