"""An operator as a process that tests start, kill and start again."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.assets import Assets
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import NodeSpec
from tests.cluster.errors import ClusterFailed
from tests.cluster.installation import install_crd, start_operator
from tests.cluster.processes import Process, last_lines
from tests.e2e.kubernetes.dying_operator import VARIABLE
from tests.e2e.kubernetes.job import WITHIN_S

DYING = (sys.executable, "-m", "tests.e2e.kubernetes.dying_operator")


@dataclass(slots=True)
class OperatorProcess:
    """At most one operator at a time, beside the control plane."""

    cluster: Cluster
    log: Path
    _process: Process | None = field(default=None)

    def start(self) -> None:
        """Start the real one."""
        self._process = start_operator(self.cluster, self.log)

    def start_to_die(self, moment: str) -> None:
        """Start one that kills itself at a moment of dying_operator."""
        self._process = start_operator(self.cluster, self.log, DYING, {VARIABLE: moment})

    def kill(self) -> None:
        """SIGKILL it."""
        assert self._process is not None
        self._process.kill()

    def wait_until_dead(self, moment: str) -> None:
        """Wait until it has killed itself.

        Raises:
            ClusterFailed: it lives on.
        """
        assert self._process is not None
        if not self._process.ends_within(WITHIN_S):
            raise ClusterFailed(f"the operator never died at {moment!r}: {last_lines(self.log)}")
        launcher = self._process.launcher
        assert launcher is not None
        ended = launcher.returncode
        if ended not in (-signal.SIGKILL, 128 + signal.SIGKILL):
            raise ClusterFailed(f"the operator ended with {ended}: {last_lines(self.log)}")


@contextmanager
def operator_of(cluster: Cluster) -> Iterator[OperatorProcess]:
    """A running operator, ended at the end, when what it said is printed for a failed test."""
    operator = OperatorProcess(cluster, cluster.folder / "operator.log")
    operator.start()
    try:
        yield operator
    finally:
        operator.kill()
        print(operator.log.read_text())


@contextmanager
def operator_on(nodes: Sequence[NodeSpec], assets: Assets) -> Iterator[OperatorProcess]:
    """A running operator of a cluster of its own with these nodes."""
    with Cluster.start(nodes, assets=assets) as cluster:
        install_crd(cluster)
        with operator_of(cluster) as found:
            yield found
