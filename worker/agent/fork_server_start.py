"""Starts the fork server of a pod, whose import of torch takes seconds: before all else.

It imports nothing heavy, so that the command of an agent can call it first.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass

from worker.agent.forkserver import ENVIRONMENT
from worker.device.environment import DeviceKind, environment_of


@dataclass(frozen=True, slots=True)
class ForkServer:
    """A fork server that runs.

    Attributes:
        process: it dies with this one.
        control: the agent's end of the SOCK_SEQPACKET pair, which does not block.
    """

    process: subprocess.Popen[bytes]
    control: socket.socket


def start_fork_server(host: str, device: DeviceKind = "cpu") -> ForkServer:
    """Start one; whatever follows comes from its messages.

    Args:
        host: on which the pod's processes meet those of other pods.
        device: of the ranks.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    environment = {**os.environ, **ENVIRONMENT, **environment_of(device)}
    if host in ("127.0.0.1", "::1"):
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker", "forkserver", "--control-fd", str(theirs.fileno()),
             "--agent-pid", str(os.getpid())],
            pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    return ForkServer(process, ours)
