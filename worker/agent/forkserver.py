"""Import torch and DeepSpeed once, fork every rank from the warm parent.

A rank that joins then costs a fork (milliseconds) instead of an import (seconds).  The price is a
rule: this process stays single-threaded, because a fork copies only the calling thread: one
multi-threaded torch operation here, and every child hangs at its first parallel region.  So threads
are counted before each fork.

The agent asks over a SOCK_SEQPACKET pair: a `Fork` with one file descriptor, the child's channel;
the answers are `FromForkServer`, all in `control/messages.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import logging
import os
import select
import signal
import socket
import sys
from pathlib import Path

from worker.control.messages import (
    Alive,
    Exited,
    Failed,
    Fork,
    Forked,
    ForkRefused,
    FromForkServer,
    Warm,
)
from worker.error_kinds import Trouble

LOG = logging.getLogger(__name__)
MESSAGE_BYTES = 1 << 16
PR_SET_PDEATHSIG = 1
BEAT_S = 1.0
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "LOCAL_RANK": "0",  # a rank sees one device
    "MASTER_ADDR": "127.0.0.1",  # read by DeepSpeed, never used: the world has formed before
}
# What a rank would import in its first stall: our part, and what DeepSpeed imports on building.
FIRST_USE = (
    "worker.engine.deepspeed",
    "worker.rank.process",
    "worker.control.store",
    "deepspeed.module_inject.auto_ep_config",
    "deepspeed.module_inject.auto_ep_layer",
)


def die_with_parent(parent: int) -> None:
    """Be killed when the process `parent` dies, however it dies, or has died already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died in between
        os._exit(1)


def warm() -> None:
    """Import what a rank needs, without starting a thread."""
    modules = [importlib.import_module(name) for name in FIRST_USE]
    modules[0].warm_up()


def serve(control: socket.socket) -> None:
    """Answer fork requests until the agent closes its end; the children die with this process."""
    warm()
    gc.collect()
    gc.freeze()  # else a collection in a child touches, and so copies, every page
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _answer(control, Warm())
    while True:
        ready, _, _ = select.select([control.fileno(), wake], [], [], BEAT_S)
        if not ready:
            _answer(control, Alive())
        if wake in ready:
            os.read(wake, 4096)
            _reap(control)
        if control.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
            if not data:
                return
            _fork(control, Fork.model_validate_json(data), socket.socket(fileno=descriptors[0]))


def _answer(control: socket.socket, message: FromForkServer) -> None:
    with contextlib.suppress(OSError):  # the agent is gone: the next receive says so
        control.send(message.to_line())


def _reap(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _answer(control, Exited(pid=pid, code=os.waitstatus_to_exitcode(status)))


def _fork(control: socket.socket, request: Fork, channel: socket.socket) -> None:
    parent = os.getpid()
    threads = len(list(Path("/proc/self/task").iterdir()))
    error = None
    if threads != 1:
        error = f"the fork server has {threads} threads, its children would hang"
    elif _has_used_cuda():
        error = "the fork server has initialised CUDA, its children could make no call of it"
    pid = None
    if error is None:
        try:
            pid = os.fork()
        except OSError as failure:  # this process must live on: the ranks would die with it
            error = f"no process could be made: {(failure.strerror or str(failure)).lower()}"
    if pid is None:
        _answer(control, ForkRefused(key=request.key, error=error or ""))
        channel.close()
        return
    if pid == 0:
        control.close()
        _child(request, channel, parent)
    channel.close()
    _answer(control, Forked(key=request.key, pid=pid))


def _has_used_cuda() -> bool:
    """Whether a child could make no CUDA call; without torch there is none to make."""
    cuda = sys.modules.get("worker.device.cuda")
    return cuda is not None and bool(cuda.is_initialised())


def _child(request: Fork, channel: socket.socket, parent: int) -> None:
    code = 1
    try:
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        for name in (signal.SIGCHLD, signal.SIGINT):  # nobody here handles SIGTERM
            signal.signal(name, signal.SIG_DFL)
        faulthandler.register(signal.SIGUSR1)  # the stacks of all threads, into the pod's log
        module, _, function = request.entry.partition(":")
        getattr(importlib.import_module(module), function)(channel, **request.arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException as failure:
        LOG.critical("process %s failed", request.key, exc_info=True)
        with contextlib.suppress(OSError):
            channel.send(Failed(trouble=Trouble.of(failure)).to_line())
    finally:
        sys.stderr.flush()
        os._exit(code)  # not sys.exit: the parent's exit handlers are not ours to run
