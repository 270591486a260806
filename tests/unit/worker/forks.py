"""Children of a test's process, which has imported everything once and started no thread."""

from __future__ import annotations

import faulthandler
import os
import selectors
import sys
import time
import traceback
from collections.abc import Callable
from typing import TextIO

from worker.agent.forkserver import die_with_parent


def forked(work: Callable[[TextIO], None]) -> tuple[int, int]:
    """(pid of a child that does the work, where what it writes is read until it ends)."""
    out, into = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(into)
        return pid, out
    die_with_parent(parent)  # whom a time limit kills, so that it can stop nobody
    code = 1
    stacks_before_the_end()
    try:
        with os.fdopen(into, "w") as lines:
            work(lines)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # the parent's exit handlers are not the child's to run


def stacks_before_the_end() -> None:
    """Let this process write the stacks of its threads at STACKS_AT, a time, if that is set."""
    if at := os.environ.get("STACKS_AT"):
        faulthandler.dump_traceback_later(max(0.1, float(at) - time.time()))


def ended(children: list[tuple[int, int]]) -> list[str]:
    """What each child has written, once all have ended.

    All are read at once: a child with much to say would wait, and its peers for it.
    """
    written = {out: b"" for _, out in children}
    with selectors.DefaultSelector() as readable:
        for out in written:
            readable.register(out, selectors.EVENT_READ)
        while readable.get_map():
            for key, _ in readable.select():
                part = os.read(key.fd, 1 << 16)
                written[key.fd] += part
                if not part:
                    readable.unregister(key.fd)
                    os.close(key.fd)
    for pid, _ in children:
        os.waitpid(pid, 0)
    return [written[out].decode() for _, out in children]
