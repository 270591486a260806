"""Run kubectl and Helm of this host against the cluster, touching nothing of the user's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.assets import Assets
from tests.cluster.errors import ClusterFailed

# What would lead a program past the home that it is given.
_LEADS_ELSEWHERE = ("XDG_", "HELM_", "KUBE")


@dataclass(frozen=True, slots=True)
class Programs:
    """Programs with the cluster's folder for a home."""

    folder: Path
    assets: Assets

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file for programs on this host."""
        return self.folder / "kubeconfig"

    @property
    def environment(self) -> dict[str, str]:
        """Variables for programs on this host."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_LEADS_ELSEWHERE)
        }
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return {**kept, "HOME": str(home), "KUBECONFIG": str(self.kubeconfig)}

    def run(
        self, binary: str, arguments: Sequence[str], stdin: str = "", check: bool = True
    ) -> str:
        """Run a binary of the assets to its end and return what it prints.

        Raises:
            ClusterFailed: it fails and `check` is set; the message has its own.
        """
        done = subprocess.run(
            [self.assets.path(binary), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise ClusterFailed(f"{binary} {' '.join(arguments)}: {said}")
        return done.stdout
