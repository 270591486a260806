"""`python -m tests.cluster`: a cluster to play with, and Heddle of this checkout in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.__main__ import OPERATOR_NODE
from tests.cluster.assets import Assets
from tests.cluster.cluster import Cluster
from tests.cluster.images import write_image
from tests.cluster.installation import Installation
from tests.cluster.record import Record

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
IMAGE = "localhost/brought-along:1"
# A node on which only what tolerates its taint may run, and an image that needs a secret.
GUARDED = (
    "--set=image.pullSecrets[0].name=registry",
    "--set=tolerations[0].key=dedicated,tolerations[0].operator=Exists",
)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.cluster", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def exports(said: str) -> dict[str, str]:
    """The variables that the line `export ...` of an output sets."""
    (line,) = (line.split() for line in said.splitlines() if line.startswith("  export "))
    return dict(pair.split("=", 1) for pair in line[1:])


def test_the_command_line_starts_changes_and_ends_a_cluster(assets: Assets, tmp_path: Path):
    folder = tmp_path / "cluster"
    at = ("--folder", str(folder))
    up = command("up", *at, "--node", "left:1:demo-fast", "--node", "right:1:demo-fast")
    assert up.returncode == 0, up.stderr
    assert exports(up.stdout)["KUBECONFIG"] == f"{folder}/kubeconfig"
    assert " install\n" in up.stdout
    assert " load-image ARCHIVE.tar\n" in up.stdout
    record = Record.read(folder)
    try:
        again = command("up", *at)
        assert (again.returncode, again.stderr.count("\n")) == (2, 1)
        heddle_is_installed(at, folder)
        an_image_is_loaded(at, folder, tmp_path)
        assert command("power-off", *at, "left").returncode == 0
        assert not record.processes["left/machine"].alive()
        assert command("power-off", *at, "middle").stderr.startswith("Error: no node middle")
    finally:
        down = command("down", *at)
    assert down.returncode == 0, down.stderr
    assert not folder.exists()
    assert not record.processes["machine"].alive()
    assert "No cluster runs" in command("down", *at).stdout


def heddle_is_installed(at: tuple[str, ...], folder: Path) -> None:
    """What the command says may be typed; a second time it upgrades; `helm test` passes."""
    done = command("install", *at)
    assert done.returncode == 0, done.stderr
    found = exports(done.stdout)
    paths = f"{os.environ['PATH']}{found['PATH'].removeprefix('$PATH')}"
    environment = {**os.environ, "KUBECONFIG": found["KUBECONFIG"], "PATH": paths}
    for line in ("kubectl get heddlejobs", "helm status heddle", "heddle --version"):
        ran = subprocess.run(
            ["bash", "-c", line], env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
    assert command("install", *at).returncode == 0
    cluster = Cluster.open(folder)
    cluster.kubectl("taint", "node", OPERATOR_NODE.name, "dedicated=system:NoSchedule")
    installation = Installation(cluster)
    installation.upgrade(*GUARDED)
    assert "Phase:          Succeeded" in installation.test()


def an_image_is_loaded(at: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """Every node has it; a file that is not there is one sentence."""
    layer = tmp_path / "empty.tar"
    subprocess.run(["tar", "--create", "--file", layer, "--files-from", "/dev/null"], check=True)
    archive = tmp_path / "image.tar"
    write_image(archive, IMAGE, layer.read_bytes(), ("/none",))
    assert command("load-image", *at, str(archive)).returncode == 0
    has = [list(node.glob("imported/*.tar")) for node in (folder / "nodes").iterdir()]
    assert [len(found) for found in has] == [2, 2, 2]  # and the base image
    missing = command("load-image", *at, str(tmp_path / "none.tar"))
    assert (missing.returncode, "does not exist" in missing.stderr) == (2, True)
