"""Build the project's own images with buildah, by its Dockerfile.

The operator's is the very image.  The worker's would be 6 GB, most of it torch and CUDA, and is
built without these: by the pins that the operator needs.  The base is
python:3.11-slim where a registry answers, else a Debian with Python made by debootstrap; it trusts
the certificates that this machine trusts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.e2e.image.image_locks import BUILD, OPERATOR, WORKER, lock_of

ROOT = Path(__file__).parents[3]
NAMES = {"operator": "localhost/heddle-operator:test", "worker": "localhost/heddle-worker:test"}
UPSTREAM = "docker.io/library/python:3.11-slim"
HOST_BASE = "localhost/heddle-test-base:1"  # kept in buildah's storage, as a cache
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class NoBase(Exception):
    """There is no base image, and none can be made; the message says what is missing."""


def buildah(*arguments: str, timeout_s: float = 600.0) -> str:
    """Run buildah; what it says.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    done = subprocess.run(
        ["buildah", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise subprocess.CalledProcessError(
            done.returncode, done.args, done.stdout, done.stderr[-4000:]
        )
    return done.stdout.strip()


def missing() -> str:
    """What keeps an image from being built, in words; "" if nothing does."""
    if shutil.which("buildah") is None:
        return "buildah is missing; on Debian: apt install buildah"
    if os.geteuid() != 0:
        return "building an image without a daemon needs root"
    return ""


def base_image() -> str:
    """The name of a base image in buildah's storage.

    Raises:
        NoBase: there is none.
    """
    if HOST_BASE in buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines():
        return HOST_BASE
    try:
        buildah("pull", UPSTREAM, timeout_s=120)
        container = buildah("from", UPSTREAM)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        container = _debian()
    if CERTIFICATES.exists():
        buildah("copy", container, str(CERTIFICATES), str(CERTIFICATES))
        for variable in ("SSL_CERT_FILE", "PIP_CERT"):
            buildah("config", "--env", f"{variable}={CERTIFICATES}", container)
    buildah("commit", "--rm", container, HOST_BASE)
    return HOST_BASE


def build(target: str, context: Path) -> str:
    """Build an image and return its name.

    Args:
        target: operator or worker.
        context: an empty folder to fill and to build from.

    Raises:
        NoBase: there is no base image, and none can be made.
        subprocess.CalledProcessError: the build failed.
    """
    base = base_image()
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for path in filter(None, listed.stdout.split("\0")):  # a checkout, which .dockerignore narrows
        (context / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, context / path)
    # The same for both, so that what they share is built once.
    (context / "requirements.lock").write_text(lock_of(OPERATOR, BUILD))
    (context / WORKER.name).write_text(lock_of(OPERATOR))
    (context / "planner" / "__pycache__").mkdir(exist_ok=True)
    (context / "planner" / "__pycache__" / "stale").write_text("never to be copied")
    name = NAMES[target]
    arguments = ("--isolation", "chroot", "--build-arg", f"BASE={base}", "--target", target)
    buildah("bud", *arguments, "--layers", "--tag", name, str(context), timeout_s=900)
    return name


def _debian() -> str:
    """A container with Debian's Python, made without a registry."""
    if shutil.which("debootstrap") is None:
        raise NoBase(
            f"{UPSTREAM} cannot be pulled here, and debootstrap, which could make another base, "
            "is missing; on Debian: apt install debootstrap"
        )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        packages = "--include=python3,python3-pip,ca-certificates"
        command = ["debootstrap", "--variant=minbase", packages, "bookworm", str(root)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise NoBase(f"debootstrap cannot make a base: {done.stdout.strip().splitlines()[-1]}")
        for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            mark.unlink()  # an image for one program is nobody else's to manage
        container = buildah("from", "scratch")
        buildah("add", container, str(root), "/")
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    buildah("config", "--env", path, container)
    return container
