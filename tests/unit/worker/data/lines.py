"""A data set of many short documents: the lines of a module of the standard library."""

from __future__ import annotations

import json
import random
from pathlib import Path

from worker.data.making.prepare import prepare


def prepared_lines(folder: Path) -> str:
    """The prefix of the pair, made in a folder."""
    lines = Path(random.__file__).read_text(encoding="utf-8").splitlines()
    texts = "".join(json.dumps({"text": line}) + "\n" for line in lines if line)
    (folder / "lines.jsonl").write_text(texts, encoding="utf-8")
    prepare([folder / "lines.jsonl"], folder / "lines")
    return str(folder / "lines")
