"""Two processes of this machine that measure together, over gloo on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BUILD = Path(__file__).parents[1] / "build"  # on a disk, which /tmp need not be


def first_answer(module: str, port: int, asked: list[int], limit_s: float) -> Any:
    """The JSON that rank 0 of two prints.

    Args:
        module: started as `python -m MODULE PORT RANK FOLDER ASKED...`; both have one folder.
        port: where the two meet.
        asked: further arguments.
        limit_s: seconds until either must have ended.

    Raises:
        subprocess.TimeoutExpired: one has not.
    """
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", module, str(port), str(rank), folder, *map(str, asked)],
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        answers = [rank.communicate(timeout=limit_s)[0] for rank in ranks]
    return json.loads(answers[0])
