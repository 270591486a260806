"""Write container images without a daemon, a registry or a build tool.

The base image is busybox and the empty folders over which pods mount the host's Python
(`host_mounts.py`).  It serves as the pause container of every pod too: its command sleeps.

Source: the archive that `docker save` writes (manifest.json, one config, one layer per folder).
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

BASE_IMAGE = "localhost/heddle-base:1"
FOLDERS = ("bin", "dev", "etc", "lib", "lib64", "proc", "sys", "tmp", "usr")
APPLETS = ("cat", "echo", "env", "false", "ls", "sh", "sleep", "true")
_FOREVER = ("/bin/sleep", "2147483647")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _entry(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o755) -> tarfile.TarInfo:
    """An entry whose bytes do not depend on when or by whom it is written."""
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, mode
    return info


def base_layer(busybox: bytes) -> bytes:
    """A root file system: busybox, links for its applets, and empty folders to mount over."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in FOLDERS:
            layer.addfile(_entry(folder, tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755))
        binary = _entry("bin/busybox")
        binary.size = len(busybox)
        layer.addfile(binary, io.BytesIO(busybox))
        for applet in APPLETS:
            link = _entry(f"bin/{applet}", tarfile.SYMTYPE)
            link.linkname = "busybox"
            layer.addfile(link)
    return buffer.getvalue()


def write_image(archive: Path, name: str, layer: bytes, command: tuple[str, ...]) -> None:
    """Write one layer (a tar) as the image `name`, run by `command`, to `archive`."""
    digest = hashlib.sha256(layer).hexdigest()
    machine = platform.machine()
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Cmd": command, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    layer_name = f"{digest}/layer.tar"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [layer_name]}]
    parts = {
        config_name: config,
        layer_name: layer,
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(archive, "w") as out:
        for part, content in parts.items():
            entry = _entry(part, mode=0o644)
            entry.size = len(content)
            out.addfile(entry, io.BytesIO(content))


def write_base_image(archive: Path, busybox: Path) -> None:
    """Write the base image around a static busybox."""
    write_image(archive, BASE_IMAGE, base_layer(busybox.read_bytes()), _FOREVER)
