"""The pins that the operator's image has: those of requirements.lock without the training stack.

`python -m tests.e2e.image.operator_lock` writes requirements-operator.lock anew.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
LOCK = ROOT / "requirements-operator.lock"
# Training and pictures need these.
LEFT_OUT = {"deepspeed", "torch", "matplotlib", "tokenizers"}
BUILD = ("editables", "hatchling", "uv")


def small_lock(more: Sequence[str] = ()) -> str:
    """The blocks of requirements.lock that the operator needs, and those of further packages."""
    project = (ROOT / "pyproject.toml").read_text()
    found = [
        re.search(rf"^{key} = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
        for key in ("dependencies", "operator")
    ]
    listed = "".join(part[1] for part in found if part is not None)
    names = [name for name in re.findall(r'"([\w-]+)', listed) if name not in LEFT_OUT]
    kept, left = set(), [*names, *more]
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in kept:
            continue
        kept.add(name)
        try:
            needed = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:  # for another Python or platform
            continue
        left += [r.name for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    blocks = re.split(r"(?m)^(?=[a-z0-9])", (ROOT / "requirements.lock").read_text())
    return "".join(block for block in blocks if block.partition("==")[0] in kept)


if __name__ == "__main__":
    LOCK.write_text(small_lock())
