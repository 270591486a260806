"""Processes known by their pid on the host, and machines made of namespaces.

A `Machine` is a set of mount, pid and (its own or a given) network namespaces.  Its first process
holds it together: when that one is killed, the kernel kills every other in it at once and undoes
its mounts, as a power failure would.  Machines nest: a node is a machine inside the cluster's.

Invariant: a process is killed by its own pid, and only if it is the one that was started, which
its start time tells.  Source: namespaces(7), pid_namespaces(7), pidfd_open(2).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.errors import ClusterFailed

DIES_WITHIN_S = 10.0
_COMMAND_S = 300.0  # the import of a large image
_UNSHARED = ("--pid", "--fork", "--kill-child=KILL", "--mount-proc")
_STATE, _START_TIME = 0, 19  # fields of /proc/PID/stat after the command's name


def last_lines(log: Path, count: int = 5) -> str:
    """The end of a log file, on one line."""
    if not log.exists():
        return "no log"
    return " | ".join(log.read_text(errors="replace").splitlines()[-count:])


def _stat(pid: int) -> list[str] | None:
    """What the kernel says of a process; None if there is none that still lives."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[_STATE] in "ZX" else fields


def _only_child(pid: int) -> int:
    """The pid of the one child of a launcher."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if len(children) != 1:
        raise ClusterFailed(f"process {pid} has {len(children)} children where one was started")
    return int(children[0])


@dataclass(slots=True)
class Process:
    """A process by its pid on the host.

    Args:
        started: its start in clock ticks since boot; a reused pid has another.
        launcher: the nsenter or unshare above it, reaped after it, if this program started it.
    """

    pid: int
    started: int
    launcher: subprocess.Popen[str] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, pid: int, launcher: subprocess.Popen[str] | None = None) -> Process:
        """The process that has this pid now."""
        stat = _stat(pid)
        if stat is None:
            raise ClusterFailed(f"process {pid} ended as soon as it was started")
        return cls(pid, int(stat[_START_TIME]), launcher)

    def alive(self) -> bool:
        """Whether it still runs."""
        stat = _stat(self.pid)
        return stat is not None and int(stat[_START_TIME]) == self.started

    def ends_within(self, timeout_s: float) -> bool:
        """Wait until it has ended; False if it still runs after that time."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            ended = not self.alive() or bool(select.select([handle], [], [], timeout_s)[0])
        finally:
            os.close(handle)
        if ended and self.launcher is not None:
            self.launcher.wait()
        return ended

    def kill(self) -> None:
        """Kill it and wait until it is gone; nothing happens if it already is."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            handle = -1
        if handle >= 0:
            try:
                if self.alive():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    if not select.select([handle], [], [], DIES_WITHIN_S)[0]:
                        raise ClusterFailed(f"process {self.pid} outlives SIGKILL")
            finally:
                os.close(handle)
        if self.launcher is not None:
            self.launcher.wait()


def _launch(
    command: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str],
    depth: int,
    keep: tuple[int, ...] = (),
) -> Process:
    """Start a command that says one line when it is up; the process `depth` below the launcher."""
    with log.open("a") as errors:
        launcher = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            pass_fds=keep,
            env={**os.environ, **environment},
        )
    assert launcher.stdout is not None
    with launcher.stdout as said:
        if not said.readline():
            launcher.wait()
            raise ClusterFailed(f"{command[0]} ended at once: {last_lines(log)} ({log})")
    pid = launcher.pid
    try:
        for _ in range(depth):
            pid = _only_child(pid)
        return Process.of(pid, launcher)
    except (OSError, ClusterFailed) as error:
        raise ClusterFailed(f"{command[-1]} ended at once: {last_lines(log)} ({log})") from error


@dataclass(frozen=True, slots=True)
class Machine:
    """Namespaces, known by their first process."""

    first: Process

    @classmethod
    def start(cls, script: Path, environment: Mapping[str, str], log: Path, tied: bool) -> Machine:
        """Start a machine of its own, with `script` as its first process.

        Args:
            tied: it dies with the calling thread's process, even if that one is killed.
        """
        tie = ("setpriv", "--pdeathsig", "KILL") if tied else ()
        unshare = ("unshare", "--mount", "--net", *_UNSHARED, "sh", script)
        return cls(_launch([*tie, *unshare], log, environment, depth=1))

    def start_inside(
        self, script: Path, environment: Mapping[str, str], log: Path, network: str
    ) -> Machine:
        """Start a machine inside this one, in its network namespace of that name."""
        enter = (*self._enter("mount", "pid"), "nsenter", f"--net=/run/netns/{network}")
        unshare = ("unshare", "--mount", *_UNSHARED, "sh", script)
        return Machine(_launch([*enter, *unshare], log, environment, depth=2))

    def _enter(self, *kinds: str) -> list[str]:
        return ["nsenter", f"--target={self.first.pid}", *(f"--{kind}" for kind in kinds), "--"]

    def run(self, *command: str | Path, stdin: str = "") -> str:
        """Run a command inside to its end and return what it says.

        Raises:
            ClusterFailed: it fails; the message has its own.
        """
        text = " ".join(map(str, command))
        try:
            done = subprocess.run(
                [*self._enter("mount", "net", "pid"), *(str(part) for part in command)],
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=_COMMAND_S,
            )
        except subprocess.TimeoutExpired:
            raise ClusterFailed(f"{text}: no end after {_COMMAND_S:g} s") from None
        if done.returncode:
            raise ClusterFailed(f"{text}: {done.stderr.strip()}")
        return done.stdout

    def spawn(
        self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
    ) -> Process:
        """Start a command inside that goes on; what it says is appended to `log`."""
        shell = ("sh", "-c", 'echo started; exec "$@" >>"$HEDDLE_LOG" 2>&1', "sh")
        return _launch(
            [*self._enter("mount", "net", "pid"), *shell, *command],
            log,
            {**(environment or {}), "HEDDLE_LOG": str(log)},
            depth=1,
        )

    def serve(self, command: Sequence[str], log: Path, descriptor: int) -> Process:
        """Start a command of the host in this network, handing it an open socket."""
        return _launch([*self._enter("net", "pid"), *command], log, {}, depth=1, keep=(descriptor,))
