"""Provide what does not come from Go modules: runc, CNI plugins, busybox, and the base image.

The pieces that the machine has installed are copied; the others come out of the distribution's
packages, downloaded and unpacked, with nothing installed.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.cluster.assets import RUNTIME, Assets
from tests.cluster.errors import AssetMissing
from tests.cluster.images import write_base_image

_PLUGINS = ("usr/lib/cni", "opt/cni/bin")
# {binary: (Debian package, where it lies under the root of a system)}
SOURCES = {
    "runc": ("runc", ("usr/sbin", "usr/bin", "usr/local/sbin", "usr/local/bin")),
    "bridge": ("containernetworking-plugins", _PLUGINS),
    "host-local": ("containernetworking-plugins", _PLUGINS),
    "loopback": ("containernetworking-plugins", _PLUGINS),
    "busybox": ("busybox-static", ("bin", "usr/bin")),
}


def is_static(binary: Path) -> bool:
    """Whether an ELF binary names no loader, so that it runs in an empty root file system."""
    with binary.open("rb") as file:
        return b"/ld-linux" not in (head := file.read(4096)) and b"/ld-musl" not in head


def find_under(root: Path, binary: str) -> Path | None:
    """The binary in the system whose root folder is `root`, if it is there and usable."""
    for folder in SOURCES[binary][1]:
        path = root / folder / binary
        if path.is_file() and (binary != "busybox" or is_static(path)):
            return path
    return None


def _unpack(packages: list[str], root: Path) -> None:
    """Download Debian packages and unpack them under `root`."""
    by_hand = f"install them: apt-get install {' '.join(packages)}"
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise AssetMissing(
            f"no {', '.join(packages)} here and no apt-get to fetch them; {by_hand}, or what your "
            "distribution calls them"
        )
    with tempfile.TemporaryDirectory(prefix="heddle-packages-") as downloads:
        # apt drops to an unprivileged user to download, who must be able to write here.
        Path(downloads).chmod(0o777)
        done = subprocess.run(
            ["apt-get", "download", *packages],
            cwd=downloads,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssetMissing(
                f"apt-get could not download {', '.join(packages)} "
                f"({done.stderr.strip().splitlines()[-1]}); run apt-get update, or {by_hand}"
            )
        for archive in sorted(Path(downloads).glob("*.deb")):
            subprocess.run(["dpkg", "-x", archive, root], check=True)


def provide_runtime(assets: Assets, say: Callable[[str], None]) -> None:
    """Copy or fetch what `assets.runtime` lacks, and write the base image.

    Raises:
        AssetMissing: a package can be neither found nor downloaded.
    """
    assets.runtime.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in RUNTIME if not (assets.runtime / name).exists()]
    found = {name: find_under(Path("/"), name) for name in wanted}
    packages = sorted({SOURCES[name][0] for name, path in found.items() if path is None})
    with tempfile.TemporaryDirectory(prefix="heddle-runtime-") as folder:
        unpacked = Path(folder)
        if packages:
            say(f"fetching the packages {', '.join(packages)}; nothing is installed")
            _unpack(packages, unpacked)
        for name in wanted:
            path = found[name] or find_under(unpacked, name)
            if path is None:
                raise AssetMissing(
                    f"the package {SOURCES[name][0]} holds no usable {name}; "
                    f"put one into {assets.runtime}"
                )
            partial = assets.runtime / f".{name}"
            shutil.copy(path, partial)
            partial.rename(assets.runtime / name)
    if not assets.image.exists():
        partial = assets.image.with_name(f".{assets.image.name}")
        write_base_image(partial, assets.runtime / "busybox")
        partial.rename(assets.image)
