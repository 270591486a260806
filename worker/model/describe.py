"""Asks a process of its own for the config.json of an entry point, so that no command loads torch.

The process finds the user's module where ranks do: in the working folder, and on PYTHONPATH.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from planner.errors import InvalidWorkload
from planner.failure import Failure

LIMIT_S = 120.0


def describe(entry_point: str) -> dict[str, Any]:
    """The config.json of an entry point.

    Raises:
        InvalidWorkload: one sentence; what is wrong with it.
    """
    command = [sys.executable, "-m", "worker.model.own_config", entry_point]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise InvalidWorkload(
            f"entry point {entry_point} gave no model ({type(error).__name__}); it must return "
            f"within {LIMIT_S:g} s",
            code="Failed",
        ) from None
    if not found:
        failure = Failure.read(done.stderr, done.returncode)
        raise InvalidWorkload(failure.message, field=failure.field, code=failure.code)
    return found
