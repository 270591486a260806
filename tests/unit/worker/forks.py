"""Children of a test's process, which has imported everything once and started no thread."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import TextIO


def forked(work: Callable[[TextIO], None]) -> tuple[int, int]:
    """(pid of a child that does the work, where what it writes is read until it ends)."""
    out, into = os.pipe()
    pid = os.fork()
    if pid:
        os.close(into)
        return pid, out
    code = 1
    try:
        with os.fdopen(into, "w") as lines:
            work(lines)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # the parent's exit handlers are not the child's to run


def ended(children: list[tuple[int, int]]) -> list[str]:
    """What each child has written, once all have ended."""
    answers = []
    for pid, out in children:
        with os.fdopen(out) as lines:
            answers.append(lines.read())
        os.waitpid(pid, 0)
    return answers
