"""Text of a file that a user names, where `-` is standard input, as for kubectl."""

from __future__ import annotations

import sys
from pathlib import Path

STANDARD_INPUT = "-"


def read_text(path: str | Path) -> str:
    """The text of a file in UTF-8, or of standard input for `-`.

    Raises:
        OSError: the file cannot be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    if str(path) != STANDARD_INPUT:
        return Path(path).read_text(encoding="utf-8")
    if sys.stdin is None:  # the shell closed it
        return ""
    return sys.stdin.buffer.read().decode("utf-8")
