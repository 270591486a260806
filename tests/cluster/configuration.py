"""What every part of the cluster is told: addresses, flags and configuration files, all pure.

Each node hangs on a cable of its own (a veth pair) to the cluster's machine, which routes between
them, and each has a /24 for its pods:

    API server  10.0.0.1:443     on the machine's loopback, which is also the `kubernetes` Service,
                                 so that pods reach it without kube-proxy
    node i      10.123.i.1       its end of the cable; 10.123.i.0 is the machine's
    pods of i   10.124.i.0/24    .1 is the node's bridge

Traffic between pods of two nodes crosses the routing tables of both and of the machine, where
faults cut it.
"""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.certificates import Authority, Identity, encoded
from tests.cluster.errors import ClusterFailed
from tests.cluster.images import BASE_IMAGE

API_ADDRESS, API_PORT = "10.0.0.1", 443
SERVICES = "10.0.0.0/24"
NODES, PODS = "10.123.0.0/16", "10.124.0.0/16"
MAX_NODES = 254

GPU_RESOURCE = "nvidia.com/gpu"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
# A node is called NotReady after this much silence.  Kubernetes' own 40 s would make every test of
# a lost node that much longer.
NOT_READY_AFTER_S = 8
_STATUS_EVERY_S = 2
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What a node is.

    Args:
        gpu_type: value of the label nvidia.com/gpu.product.
        labels: further labels.
    """

    name: str
    gpus: int = 4
    gpu_type: str = "demo-fast"
    labels: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what the API server would refuse, two minutes later.

        Raises:
            ClusterFailed: the name, the type or the count cannot be one.
        """
        if not _NAME.fullmatch(self.name):
            raise ClusterFailed(
                f"a node cannot be called {self.name!r}; use lower-case letters, digits and dashes"
            )
        if not _LABEL.fullmatch(self.gpu_type):
            raise ClusterFailed(
                f"{self.gpu_type!r} cannot be a GPU type, which is the value of a label; use up to "
                "63 letters, digits, dashes, dots and underscores"
            )
        if self.gpus < 0:
            raise ClusterFailed(f"a node cannot have {self.gpus} GPUs; use 0 or more")


@dataclass(frozen=True, slots=True)
class Wiring:
    """Addresses of node number `index`, from 1 to MAX_NODES."""

    index: int

    @property
    def cable(self) -> str:
        """The machine's end of the cable."""
        return f"cable{self.index}"

    @property
    def machine_address(self) -> str:
        return f"10.123.{self.index}.0"

    @property
    def node_address(self) -> str:
        return f"10.123.{self.index}.1"

    @property
    def pods(self) -> str:
        return f"10.124.{self.index}.0/24"


def kubeconfig(server: str, authority: Authority, identity: Identity) -> str:
    """A kubeconfig file that holds all it needs."""
    cluster = {"server": server, "certificate-authority-data": encoded(authority.certificate)}
    user = {
        "client-certificate-data": encoded(identity.certificate),
        "client-key-data": encoded(identity.key),
    }
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "heddle-test", "cluster": cluster}],
            "users": [{"name": "admin", "user": user}],
            "contexts": [
                {"name": "heddle-test", "context": {"cluster": "heddle-test", "user": "admin"}}
            ],
            "current-context": "heddle-test",
        }
    )


def kubelet_configuration(authority: Authority, group: str) -> str:
    """The kubelet's configuration file, for pods below the control group `group`."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{group}",
            "failCgroupV1": False,
            "failSwapOn": False,
            # Lowering it would need CAP_SYS_RESOURCE, which containers often lack.
            "oomScoreAdj": 0,
            "maxOpenFiles": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            "makeIPTablesUtilChains": False,
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            # No name server answers here.  One that refuses costs nothing, one that cannot be
            # reached 20 s for each reverse look-up of torch's store.
            "clusterDNS": ["127.0.0.1"],
            "clusterDomain": "cluster.local",
            "nodeStatusUpdateFrequency": f"{_STATUS_EVERY_S}s",
            "nodeLeaseDurationSeconds": NOT_READY_AFTER_S,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "nodefs.inodesFree": "1%",
            },
            "imageGCHighThresholdPercent": 100,
        }
    )


def kubelet_flags(spec: NodeSpec, wiring: Wiring) -> list[str]:
    """What the kubelet takes by flag only."""
    labels: Mapping[str, str] = dict(spec.labels)
    if spec.gpus:
        labels = {
            GPU_PRODUCT_LABEL: spec.gpu_type,
            "nvidia.com/gpu.count": str(spec.gpus),
            "nvidia.com/gpu.present": "true",
            "heddle.dev/emulated-gpus": "true",
            **labels,
        }
    return [
        f"--hostname-override={spec.name}",
        f"--node-ip={wiring.node_address}",
        f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}",
        "--v=2",
    ]


def containerd_configuration(plugins: Path, networks: Path, runc: Path, snapshotter: str) -> str:
    """containerd's configuration file; JSON strings are TOML strings too."""
    text = json.dumps
    return f"""\
version = 3
disabled_plugins = ['io.containerd.internal.v1.opt', 'io.containerd.nri.v1.nri']
[plugins.'io.containerd.cri.v1.images']
  snapshotter = {text(snapshotter)}
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = {text(BASE_IMAGE)}
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [{text(str(plugins))}]
    conf_dir = {text(str(networks))}
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = {text(str(runc))}
"""


def pod_network(wiring: Wiring, leases: Path) -> str:
    """The CNI configuration: a bridge, and addresses out of the node's /24."""
    bridge: dict[str, Any] = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "dataDir": str(leases),
            "ranges": [[{"subnet": wiring.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})
