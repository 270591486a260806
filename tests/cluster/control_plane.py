"""The control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

They run in the cluster's machine, on its loopback.  Source: the flags that envtest gives, and those
that real kubelets need besides.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.api import Api
from tests.cluster.assets import Assets
from tests.cluster.certificates import Authority, Identity
from tests.cluster.configuration import (
    API_ADDRESS,
    API_PORT,
    NOT_READY_AFTER_S,
    SERVICES,
    kubeconfig,
)
from tests.cluster.errors import ClusterFailed
from tests.cluster.processes import Machine, Process, last_lines

READY_WITHIN_S = 120.0  # many times what it takes on two idle cores
_ETCD, _ETCD_PEER = "http://127.0.0.1:2379", "http://127.0.0.1:2380"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Starts and stops its processes; what they need and say is in `folder`."""

    folder: Path
    machine: Machine
    assets: Assets
    processes: MutableMapping[str, Process]

    @property
    def authority(self) -> Authority:
        """Signs for everybody in the cluster."""
        return Authority(self.folder / "certificates")

    @property
    def admin(self) -> Identity:
        """May do everything."""
        return self.authority.identity("admin")

    @property
    def kubeconfig_inside(self) -> Path:
        """The administrator's kubeconfig for programs in the cluster's machine."""
        return self.folder / "inside.kubeconfig"

    def start_server(self) -> None:
        """Make the certificates, then start etcd and the API server; does not wait for them."""
        authority = Authority.create(self.authority.folder)
        names = f"DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:{API_ADDRESS}"
        authority.issue("api", "/CN=kube-apiserver", names)
        authority.issue("admin", "/O=system:masters/CN=admin")
        authority.make_key_pair("accounts")
        self._spawn("etcd", self._etcd())
        self._spawn("kube-apiserver", self._api_server())

    def write_kubeconfig(self, path: Path, server: str) -> None:
        """Write the administrator's kubeconfig, readable for its owner only."""
        path.touch(mode=0o600)
        path.write_text(kubeconfig(server, self.authority, self.admin))

    def start_controllers(self, api: Api) -> None:
        """Start what acts on the API, once it is ready.

        Raises:
            ClusterFailed: it does not become ready; the message ends with its log.
        """
        self._await(api)
        config = self.kubeconfig_inside
        self.write_kubeconfig(config, f"https://{API_ADDRESS}:{API_PORT}")
        self._spawn("kube-controller-manager", self._controller_manager(config))
        self._spawn("kube-scheduler", [f"--kubeconfig={config}", "--leader-elect=false"])

    def stop_controllers(self) -> None:
        """Kill controller-manager and scheduler: nobody else acts on the API."""
        for name in ("kube-controller-manager", "kube-scheduler"):
            self.processes[name].kill()

    def stop_api_server(self) -> None:
        """Kill the API server; nodes and pods go on."""
        self.processes["kube-apiserver"].kill()

    def restart_api_server(self, api: Api) -> None:
        """Start the API server again and wait until it is ready."""
        self._spawn("kube-apiserver", self._api_server())
        self._await(api)

    def _await(self, api: Api) -> None:
        try:
            api.wait_until_ready(READY_WITHIN_S)
        except ClusterFailed as error:
            log = self.folder / "kube-apiserver.log"
            raise ClusterFailed(f"{error}: {last_lines(log)}") from error

    def _spawn(self, name: str, flags: Sequence[str]) -> None:
        log = self.folder / f"{name}.log"
        self.processes[name] = self.machine.spawn([str(self.assets.path(name)), *flags], log)

    def _etcd(self) -> list[str]:
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            f"--listen-peer-urls={_ETCD_PEER}",
            f"--initial-advertise-peer-urls={_ETCD_PEER}",
            f"--initial-cluster=default={_ETCD_PEER}",
            "--unsafe-no-fsync",  # nobody outlives a crash of this etcd
        ]

    def _api_server(self) -> list[str]:
        serving, accounts = self.authority.identity("api"), self.authority.identity("accounts")
        return [
            f"--etcd-servers={_ETCD}",
            f"--bind-address={API_ADDRESS}",
            f"--secure-port={API_PORT}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority.certificate}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={accounts.certificate}",
            f"--service-account-signing-key-file={accounts.key}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={self.admin.certificate}",
            f"--kubelet-client-key={self.admin.key}",
            # Webhooks are called at the pods of their Service: there is no kube-proxy.
            "--enable-aggregator-routing=true",
        ]

    def _controller_manager(self, config: Path) -> list[str]:
        return [
            f"--kubeconfig={config}",
            f"--root-ca-file={self.authority.certificate}",
            f"--service-account-private-key-file={self.authority.identity('accounts').key}",
            f"--cluster-signing-cert-file={self.authority.certificate}",
            f"--cluster-signing-key-file={self.authority.key}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            # It fetches a credential for each controller as it starts: 5 s at the usual rate.
            "--kube-api-qps=500",
            "--kube-api-burst=500",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={NOT_READY_AFTER_S}s",
        ]
