"""Rows that a long benchmark keeps in a file, so that a later run measures only the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def kept_rows(file: Path) -> list[dict[str, Any]]:
    """Rows of earlier runs, one a line of JSON; none where there is no file."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
