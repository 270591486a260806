"""Heddle in a cluster of the harness: by its chart, as a user installs it, or as a bare process.

Pods run this checkout with this Python (`host_mounts.py`), as root, because a checkout may lie in a
folder of root's own.  The operator's pod has a node without GPUs to itself, so that what befalls
the nodes with GPUs does not befall it.

Invariant: chart and process give the worker pods the same template.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.cluster.host_mounts import ROOT, HostMounts, host_mounts, refuse_hidden
from tests.cluster.images import BASE_IMAGE
from tests.cluster.processes import Process

Json: TypeAlias = dict[str, Any]
CHART = ROOT / "charts" / "heddle"
RELEASE = "heddle"
OPERATOR_NODE = NodeSpec("control", gpus=0)
LEASE_S = 2  # the shortest; a killed operator is followed after so long
INSTALLS_WITHIN = "--timeout=3m"
# What the operator's pod has of its own, and may not be given twice.
_OWN_VARIABLES = ("USER", "HOME")
# torch asks for the names of its peers; nobody answers here, and a refusal costs nothing.
_AS_ROOT = {"runAsNonRoot": False, "runAsUser": 0}
_NO_DNS = {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}


def heddle_command(mounts: HostMounts) -> list[str]:
    """The command `heddle` of the environment that runs this program."""
    return [str(mounts.python), str(Path(sys.executable).parent / "heddle")]


def operator_command(mounts: HostMounts) -> list[str]:
    """The entry point of the operator's image, in the environment that runs this program."""
    return mounts.command("-m", "heddle_operator")


def chart_values() -> Json:
    """Values with which the chart runs this checkout on emulated GPUs."""
    mounts = host_mounts()
    repository, _, tag = BASE_IMAGE.rpartition(":")
    own = [pair for pair in mounts.environment if pair["name"] not in _OWN_VARIABLES]
    volumes = {"extraVolumes": mounts.volumes, "extraVolumeMounts": mounts.volume_mounts}
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "command": operator_command(mounts),
        "extraEnv": own,
        **volumes,
        **_NO_DNS,
        "nodeSelector": {"kubernetes.io/hostname": OPERATOR_NODE.name},
        "podSecurityContext": _AS_ROOT,
        "replicaCount": 1,  # all nodes share one machine
        "lease": {"seconds": LEASE_S},
        "log": {"format": "text"},
        "test": {"command": [str(mounts.python)]},
        "worker": {
            "image": {"repository": repository, "tag": tag},
            "command": heddle_command(mounts),
            "extraArgs": ["--emulate"],
            "extraEnv": mounts.environment,
            **volumes,
            "template": {"spec": {**_NO_DNS, "securityContext": _AS_ROOT}},
        },
    }


@dataclass(frozen=True, slots=True)
class Installation:
    """One release of the chart in a cluster that has the node OPERATOR_NODE."""

    cluster: Cluster
    release: str = RELEASE

    def __post_init__(self) -> None:
        """Refuse a checkout that its pods would not see."""
        refuse_hidden(host_mounts().folders)

    def install(self, *options: str) -> str:
        """Install the chart and wait until its operator is ready; what Helm says.

        Raises:
            ClusterFailed: it is not; the message has Helm's own.
        """
        return self._apply("install", *options)

    def upgrade(self, *options: str) -> str:
        """Upgrade to the chart as it is now, with further options such as `--set=...`."""
        return self._apply("upgrade", *options)

    def uninstall(self) -> str:
        """Uninstall and wait until the operator is gone."""
        return self.cluster.helm("uninstall", self.release, "--wait", INSTALLS_WITHIN)

    def install_or_upgrade(self, *options: str) -> str:
        """Install the chart, or upgrade the release that is there."""
        return self._apply("upgrade", "--install", *options)

    def test(self) -> str:
        """Run `helm test`; what Helm says.

        There is no DNS and no kube-proxy, so the pod is told the address of the operator's.

        Raises:
            ClusterFailed: a test fails.
        """
        pods = self.cluster.api.get("/api/v1/namespaces/default/pods")["items"]
        (address,) = (
            pod["status"]["podIP"]
            for pod in pods
            if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "operator"
            and pod["metadata"]["labels"].get("app.kubernetes.io/instance") == self.release
            and not pod["metadata"].get("deletionTimestamp")
        )
        self.upgrade("--reuse-values", f"--set=test.url=http://{address}:8080/metrics")
        return self.cluster.helm("test", self.release, "--logs", "--timeout=2m")

    @property
    def operator(self) -> str:
        """The operator, as kubectl names it."""
        return f"deployment/{self.release}"

    def operator_log(self) -> str:
        """What the operator has said."""
        return self.cluster.kubectl("logs", self.operator, "--tail=-1", check=False)

    def _apply(self, verb: str, *options: str) -> str:
        values = yaml.safe_dump(chart_values())
        base = (verb, self.release, str(CHART), "--values=-", "--wait", INSTALLS_WITHIN)
        return self.cluster.helm(*base, *options, stdin=values)


def start_operator(
    cluster: Cluster,
    log: Path,
    command: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    allow: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Process:
    """Start an operator as a process of the machine, beside the control plane; it needs the CRD.

    Args:
        log: what it says is appended there.
        command: what runs the command line, instead of `heddle`.
        environment: further variables.
        allow: fields that pod templates of jobs may set besides.
        options: further ones of its command line, which hold over those that are given here.
    """
    mounts = host_mounts()
    values = chart_values()["worker"]
    container = {
        "name": "worker",
        "imagePullPolicy": "Never",
        "command": values["command"],
        "args": values["extraArgs"],
        "env": values["extraEnv"],
        "volumeMounts": values["extraVolumeMounts"],
    }
    base = {"spec": {"containers": [container], "volumes": values["extraVolumes"]}}
    given = [f"--worker-image={BASE_IMAGE}", f"--lease-seconds={LEASE_S}"]
    for name, content in (("base", base), ("template", values["template"])):
        path = cluster.folder / f"worker-{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        given.append(f"--worker-{name}={path}")
    given += [f"--worker-allow={field}" for field in allow]
    run = [*(command or operator_command(mounts)), "run", *given, *options]
    return cluster.spawn(run, log, {"PYTHONPATH": str(ROOT), **(environment or {})})


def install_crd(cluster: Cluster) -> None:
    """Let the cluster know HeddleJobs, and wait until it serves them."""
    cluster.kubectl("apply", "--filename", str(ROOT / "manifests" / "crd"))
    wait = ("wait", "--for=condition=Established", "--timeout=60s")
    cluster.kubectl(*wait, "crd/heddlejobs.heddle.dev")
