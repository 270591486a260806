"""What has to be known to take a cluster over, or to end it: a file in its folder.

Invariant: the file is replaced as a whole, and names every process before anything depends on it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.configuration import NodeSpec
from tests.cluster.errors import ClusterFailed
from tests.cluster.processes import Process

_FILE = "cluster.json"


@dataclass(slots=True, kw_only=True)
class Record:
    """The cluster so far.

    Args:
        name: also that of its control group.
        port: of this host's loopback, behind which the API server is; 0 before there is one.
        images: archives that every node imports.
        nodes: {index in the wiring: node}, the index never reused.
        processes: {name: process}; a node's begin with its name and a slash.
    """

    name: str
    port: int = 0
    images: list[Path] = field(default_factory=list)
    nodes: dict[int, NodeSpec] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    _writing: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def write(self, folder: Path) -> None:
        """Replace the file in the folder."""
        # Copies, since nodes that start side by side add to it meanwhile.
        text = {
            "name": self.name,
            "port": self.port,
            "images": [str(image) for image in self.images],
            "nodes": {index: asdict(spec) for index, spec in list(self.nodes.items())},
            "processes": {key: [at.pid, at.started] for key, at in list(self.processes.items())},
        }
        with self._writing:
            partial = folder / f"{_FILE}.new"
            partial.write_text(json.dumps(text, indent=2))
            partial.rename(folder / _FILE)

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether a cluster has been started there and not closed."""
        return (folder / _FILE).exists()

    @classmethod
    def read(cls, folder: Path) -> Record:
        """The record in the folder.

        Raises:
            ClusterFailed: there is none.
        """
        try:
            text = json.loads((folder / _FILE).read_text())
        except FileNotFoundError:
            raise ClusterFailed(f"no cluster in {folder}; start one with: make cluster") from None
        return cls(
            name=text["name"],
            port=text["port"],
            images=[Path(image) for image in text["images"]],
            nodes={int(index): _spec(fields) for index, fields in text["nodes"].items()},
            processes={key: Process(*at) for key, at in text["processes"].items()},
        )


def _spec(fields: Mapping[str, Any]) -> NodeSpec:
    labels = tuple((key, value) for key, value in fields["labels"])
    return NodeSpec(fields["name"], fields["gpus"], fields["gpu_type"], labels)
