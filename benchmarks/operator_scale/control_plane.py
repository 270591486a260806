"""A control plane without kubelets, an operator beside it, and what is measured there."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.operator_scale.sizes import Measured, Sizes, measured_of
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterFailed
from tests.cluster.host_mounts import ROOT
from tests.cluster.installation import install_crd, start_operator
from tests.cluster.processes import Process, last_lines

LEASE_S = 15  # the operator's own default
INSIDE = "benchmarks.operator_scale.inside"
SET_UP_WITHIN_S = 300.0


def measure(sizes: Sizes, within_s: float) -> list[Measured]:
    """Start all of it, measure, and end all of it.

    Args:
        within_s: after so long what is not measured yet is left out.

    Raises:
        AssetMissing: no control plane can start here.
        ClusterFailed: nothing could be measured; the message has the end of a log.
    """
    with Cluster.start(()) as cluster:
        install_crd(cluster)
        log, output = cluster.folder / "operator.log", cluster.folder / "phases.jsonl"
        output.touch()
        # Nobody else may bind pods, or end those of nodes whose kubelets are emulated.
        cluster.stop_controllers()
        set_up = _inside(cluster, sizes, output)
        if not set_up.ends_within(SET_UP_WITHIN_S):
            set_up.kill()
        operator = start_operator(cluster, log, options=[f"--lease-seconds={LEASE_S}"])
        try:
            measuring = _inside(cluster, sizes, output, _pid_inside(operator))
            if not measuring.ends_within(within_s):
                measuring.kill()
        finally:
            operator.kill()
        found = measured_of(output.read_text())
        if not found:
            said = last_lines(cluster.folder / "inside.log")
            raise ClusterFailed(f"nothing was measured: {said}; {last_lines(log)}")
        return found


def _inside(cluster: Cluster, sizes: Sizes, output: Path, *pid: int) -> Process:
    command = [sys.executable, "-m", INSIDE, sizes.to_json(), str(output), *map(str, pid)]
    return cluster.spawn(command, cluster.folder / "inside.log", {"PYTHONPATH": str(ROOT)})


def _pid_inside(process: Process) -> int:
    """The pid that processes of the machine know it by."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(x for x in status.splitlines() if x.startswith("NSpid")).split()[-1])
