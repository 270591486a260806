"""Let pods run this checkout with this Python, by read-only mounts instead of a 5-GB image.

The host's /usr, /lib and /lib64, the Python prefix, the environment and the repository appear in
the pod at their own paths, so that nothing in them has to know.  What a program writes goes to an
emptyDir: the rest may be a read-only root.

The parts are data, as pod specs and chart values (`extraVolumes`, `extraVolumeMounts`) take them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.cluster.errors import ClusterFailed
from tests.cluster.images import BASE_IMAGE

Json: TypeAlias = dict[str, Any]
ROOT = Path(__file__).parents[2]
SYSTEM = ("/usr", "/lib", "/lib64")
SCRATCH = "/scratch"  # the pod's writable folder
TMP = Path("/tmp")  # pods of the chart have an empty one of their own, over that of the host


@dataclass(frozen=True, slots=True)
class HostMounts:
    """What a pod needs in order to run the host's Python.

    Args:
        folders: of the host, mounted read-only at their own paths.
        python: the interpreter that finds the project's packages.
    """

    folders: tuple[Path, ...]
    python: Path
    root: Path = ROOT

    @property
    def volumes(self) -> list[Json]:
        """For `spec.volumes`."""
        host = [
            {"name": f"host-{number}", "hostPath": {"path": str(folder), "type": "Directory"}}
            for number, folder in enumerate(self.folders)
        ]
        return [*host, {"name": "scratch", "emptyDir": {}}]

    @property
    def volume_mounts(self) -> list[Json]:
        """For `volumeMounts` of a container."""
        host = [
            {"name": f"host-{number}", "mountPath": str(folder), "readOnly": True}
            for number, folder in enumerate(self.folders)
        ]
        return [*host, {"name": "scratch", "mountPath": SCRATCH}]

    @property
    def environment(self) -> list[Json]:
        """For `env` of a container: a user without /etc/passwd, and one thread for each process."""
        values = {
            "USER": "heddle",
            "HOME": SCRATCH,
            "TMPDIR": SCRATCH,
            "NUMBA_CACHE_DIR": f"{SCRATCH}/numba",
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        return [{"name": name, "value": value} for name, value in values.items()]

    def command(self, *arguments: str) -> list[str]:
        """A container's `command` that runs this Python, such as `-m worker agent`."""
        return [str(self.python), *arguments]

    def container(self, name: str, *arguments: str) -> Json:
        """A container that runs this Python with these arguments; merge resources and ports in."""
        return {
            "name": name,
            "image": BASE_IMAGE,
            "imagePullPolicy": "Never",
            "command": self.command(*arguments),
            "env": self.environment,
            "volumeMounts": self.volume_mounts,
        }

    def pod_spec(self, container: Mapping[str, Any]) -> Json:
        """A pod's spec around one container, for `spec` of a pod or of a pod template."""
        return {"volumes": self.volumes, "containers": [dict(container)]}


def _outermost(folders: list[Path]) -> tuple[Path, ...]:
    """The folders without those that lie in another, in a fixed order."""
    return tuple(
        folder
        for folder in dict.fromkeys(folders)
        if not any(other in folder.parents for other in folders)
    )


def host_mounts() -> HostMounts:
    """The mounts that let a pod run what runs this program.

    The environment is a folder with links to the Python that made it, so both are mounted; where
    one lies in another folder of the list, the outer one serves.
    """
    base = Path(sys.executable).resolve().parents[1]
    system = [Path(folder) for folder in SYSTEM if Path(folder).is_dir()]
    of_python = [base, Path(sys.base_prefix), Path(sys.prefix), ROOT]
    return HostMounts(_outermost([*system, *of_python]), Path(sys.executable))


def refuse_hidden(folders: tuple[Path, ...]) -> None:
    """Refuse folders that pods of the chart do not see, though they are mounted.

    Raises:
        ClusterFailed: one lies in /tmp.
    """
    hidden = [folder for folder in folders if folder.is_relative_to(TMP)]
    if hidden:
        raise ClusterFailed(
            f"pods have a {TMP} of their own, which hides {hidden[0]}; clone Heddle elsewhere"
        )
