"""Where the binaries of a real Kubernetes lie, and what is missing before a cluster can start.

Nothing here builds or starts anything.  Invariant: each missing piece is one sentence with the
command that provides it, and all of them are told at once.

The binaries lie in folders named by component and version, so that a new version is a new folder:

    ~/.cache/heddle/kube/          or $XDG_CACHE_HOME/heddle/kube, or $HEDDLE_KUBE_ASSETS
      kubernetes-1.37.1/           kube-apiserver kube-controller-manager kube-scheduler kubelet ...
      etcd-3.7.0/ containerd-2.4.2/ helm-4.3.1/ gpu_plugin-1/
      runtime/                     runc, the CNI plugins and busybox of the distribution

$KUBEBUILDER_ASSETS, where other operators keep such binaries, comes first for what it holds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import AssetMissing

HERE = Path(__file__).parent
KUBERNETES_VERSION = "1.37.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Binaries that are built together from one Go module of `modules/`.

    Args:
        packages: {binary: Go package}.
        stamp: Go variables set by the linker, (name, value).
    """

    name: str
    version: str
    packages: Mapping[str, str]
    module: Path
    tags: str = ""
    stamp: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}"


def _kubernetes() -> Component:
    major, minor, _ = KUBERNETES_VERSION.split(".")
    values = {
        "gitVersion": f"v{KUBERNETES_VERSION}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    # Without the stamp the server says v0.0.0-master, and Helm's kubeVersion checks fail.
    where = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    binaries = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"]
    return Component(
        name="kubernetes",
        version=KUBERNETES_VERSION,
        packages={binary: f"k8s.io/kubernetes/cmd/{binary}" for binary in binaries},
        module=HERE / "modules" / "kubernetes",
        tags="grpcnotrace,netgo,osusergo",
        stamp=tuple((f"{at}.{key}", value) for at in where for key, value in values.items()),
    )


_CONTAINERD = "github.com/containerd/containerd/v2"
COMPONENTS = (
    # The longest first, so that what takes minutes is not found out at the end.
    _kubernetes(),
    Component(
        name="etcd",
        version="3.7.0",
        packages={"etcd": "go.etcd.io/etcd/server/v3"},
        module=HERE / "modules" / "etcd",
    ),
    Component(
        name="containerd",
        version="2.4.2",
        packages={
            name: f"{_CONTAINERD}/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        module=HERE / "modules" / "containerd",
        tags="no_btrfs no_zfs no_aufs no_devmapper",
        stamp=((f"{_CONTAINERD}/version.Version", "v2.4.2"),),
    ),
    Component(
        name="helm",
        version="4.3.1",
        packages={"helm": "helm.sh/helm/v4/cmd/helm"},
        module=HERE / "modules" / "helm",
        stamp=(("helm.sh/helm/v4/internal/version.version", "v4.3.1"),),
    ),
    Component(
        name="gpu_plugin", version="1", packages={"gpu_plugin": "."}, module=HERE / "gpu_plugin"
    ),
)
RUNTIME = ("runc", "bridge", "host-local", "loopback", "busybox")  # not from Go modules
IMAGE = "base-image.tar"

# {tool: Debian package}: what the harness calls beside its own binaries.
TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "openssl": "openssl",
}


@dataclass(frozen=True, slots=True)
class Assets:
    """The folders that hold the binaries; paths only, nothing is read before it is asked for."""

    root: Path
    preferred: Path | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Assets:
        """The assets that these environment variables point at."""
        home = Path(environment.get("HOME") or "/")
        cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
        root = Path(environment.get("HEDDLE_KUBE_ASSETS") or cache / "heddle" / "kube")
        preferred = environment.get("KUBEBUILDER_ASSETS")
        return cls(root.absolute(), Path(preferred).absolute() if preferred else None)

    @property
    def runtime(self) -> Path:
        """Folder of runc, busybox and the CNI plugins."""
        return self.root / "runtime"

    @property
    def image(self) -> Path:
        """The base image, an archive that `ctr images import` reads."""
        return self.runtime / IMAGE

    @property
    def containerd(self) -> Path:
        """Folder of containerd, its shim and ctr."""
        return self.path("containerd").parent

    def path(self, binary: str) -> Path:
        """Where `binary` lies or would lie once built."""
        if self.preferred and (self.preferred / binary).exists():
            return self.preferred / binary
        for component in COMPONENTS:
            if binary in component.packages:
                return self.root / component.folder / binary
        if binary in RUNTIME:
            return self.runtime / binary
        raise ValueError(f"no component has a binary {binary}")

    def has(self, component: Component) -> bool:
        """Whether all binaries of the component are there."""
        return all(self.path(binary).exists() for binary in component.packages)

    def missing(self) -> tuple[str, ...]:
        """Names of the binaries that are not there."""
        names = [binary for component in COMPONENTS for binary in component.packages]
        absent = [name for name in (*names, *RUNTIME) if not self.path(name).exists()]
        return (*absent, *(() if self.image.exists() else (IMAGE,)))


def reasons_not_to_start(assets: Assets) -> tuple[str, ...]:
    """Why no cluster can start here: one sentence each, with what to do; empty if one can."""
    if not sys.platform.startswith("linux"):
        return (f"a cluster needs Linux namespaces; this is {sys.platform}",)
    reasons = []
    if os.geteuid() != 0:
        reasons.append("a cluster needs root for its namespaces; run it with sudo")
    lacking = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if lacking:
        reasons.append(f"tools are missing; apt-get install {' '.join(lacking)}")
    missing = assets.missing()
    if missing:
        reasons.append(
            f"{', '.join(missing)} not found under {assets.root}; "
            "build them once with: make kube-assets"
        )
    if not reasons:
        trial = subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--fork", "true"],
            capture_output=True,
            text=True,
            check=False,
        )
        if trial.returncode:
            reasons.append(
                f"this root may not create namespaces ({trial.stderr.strip()}); "
                "use a machine, a virtual machine, or a container started with --privileged"
            )
    return tuple(reasons)


def require(assets: Assets) -> None:
    """Raise AssetMissing with all reasons if no cluster can start here."""
    reasons = reasons_not_to_start(assets)
    if reasons:
        raise AssetMissing("; ".join(reasons))
