"""The pins that each image has: those of requirements.lock that what it runs needs.

`python -m tests.e2e.image.image_locks` writes both locks anew.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
OPERATOR, WORKER = ROOT / "requirements-operator.lock", ROOT / "requirements-worker.lock"
BUILD = ("editables", "hatchling", "uv")
_EXTRAS = {
    OPERATOR: ("dependencies", "operator"),
    WORKER: ("dependencies", "operator", "worker", "train", "data", "tensorboard"),
}
# Training and pictures need these, an operator neither.
_LEFT_OUT = {OPERATOR: {"deepspeed", "torch", "matplotlib", "tokenizers"}, WORKER: set[str]()}


def lock_of(path: Path, more: Sequence[str] = ()) -> str:
    """The blocks of requirements.lock that an image needs, and those of further packages."""
    project = (ROOT / "pyproject.toml").read_text()
    found = [
        re.search(rf"^{key} = \[(.*?)\]\s*(#.*)?$", project, re.MULTILINE | re.DOTALL)
        for key in _EXTRAS[path]
    ]
    listed = "".join(part[1] for part in found if part is not None)
    names = [name for name in re.findall(r'"([\w-]+)', listed) if name not in _LEFT_OUT[path]]
    kept = _with_their_needs([*names, *more])
    blocks = re.split(r"(?m)^(?=[a-z0-9])", (ROOT / "requirements.lock").read_text())
    return "".join(block for block in blocks if block.partition("==")[0] in kept)


def _with_their_needs(names: Collection[str]) -> set[str]:
    """Names as the lock writes them, of these packages and of all that they need here."""
    seen: set[tuple[str, str]] = set()
    left = [(name, "") for name in names]
    while left:
        name, extra = left.pop()
        name = re.sub(r"[-_.]+", "-", name).lower()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            needed = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:  # for another Python or platform
            continue
        for one in needed:
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                left += [(one.name, wanted) for wanted in ("", *one.extras)]
    return {name for name, _ in seen}


if __name__ == "__main__":
    for image in (OPERATOR, WORKER):
        image.write_text(lock_of(image))
