"""Files of compositions that planners are evaluated on, one a line.

A line is a composition as `heddle plan --composition` takes it, then any of `batch=2048`,
`name=LABEL` and `origin=stated|reconstructed|generated`; `#` begins a comment.
Invariant: a mistake is named with its file and line.  The sets that come with Heddle are in
`profiles/compositions`; no training composition is near one of them.
Source: Heddle, section 6; each committed set says what its lines rest on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from planner.cluster.composition import Composition
from planner.errors import InvalidComposition
from planner.model.workload import MOST_SAMPLES
from planner.profiles.profile import PROFILES
from planner.wording import did_you_mean, reason_of

COMMITTED = PROFILES / "compositions"
# stated: the paper's text gives it; reconstructed: it gives less; generated: from a seed.
ORIGINS = ("stated", "reconstructed", "generated")
_KEYS = ("batch", "name", "origin")


@dataclass(frozen=True, slots=True)
class ListedComposition:
    """One line of a file."""

    name: str  # as results call it; unique in its file, the composition's text if nothing is given
    text: str  # the composition as `heddle plan --composition` takes it
    batch: int | None = None  # samples a step; None: what the model is usually trained with
    origin: str = ""  # one of ORIGINS; empty if the line does not say

    @property
    def composition(self) -> Composition:
        """Its nodes."""
        return Composition.from_text(self.text)


def read_composition_file(path: Path) -> tuple[ListedComposition, ...]:
    """The compositions of a file, in its order; or of the set of that name, without such a file.

    Raises:
        InvalidComposition: it cannot be read, holds nothing, or has a wrong line.
    """
    committed = COMMITTED / f"{path}.txt"
    if not path.exists() and committed.is_file():
        path = committed
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors of some systems put a mark first
    except (OSError, UnicodeDecodeError) as error:
        near = did_you_mean(str(path), (one.stem for one in COMMITTED.glob("*.txt")))
        known = ", ".join(sorted(one.stem for one in COMMITTED.glob("*.txt")))
        raise InvalidComposition(
            f"compositions file {path} cannot be read: {reason_of(error)}{near}; give a file, "
            f"or one of {known}",
            code="Unreadable",
        ) from None
    return listed(text, str(path))


def listed(text: str, file: str) -> tuple[ListedComposition, ...]:
    """The compositions of a text; `file` is what an error calls it.

    Raises:
        InvalidComposition: the first mistake, with its line; or there is no composition.
    """
    found: dict[str, ListedComposition] = {}
    for number, whole in enumerate(text.splitlines(), 1):
        words = whole.partition("#")[0].split()
        if not words:
            continue
        try:
            one = _one(words)
            if one.name in found:
                raise InvalidComposition(
                    f"the name {one.name!r} appears twice; give each line a name=LABEL of its own",
                    field="name",
                    code="GivenTwice",
                )
        except InvalidComposition as error:
            raise InvalidComposition(
                f"{file}, line {number}: {error}", field=error.field, code=error.code
            ) from None
        found[one.name] = one
    if not found:
        raise InvalidComposition(
            f"{file} holds no composition; write one a line, for example h100=8x4,a100-40=4x4",
            code="Missing",
        )
    return tuple(found.values())


def _one(words: list[str]) -> ListedComposition:
    text, stated = words[0], {}
    if not Composition.from_text(text).nodes:
        raise InvalidComposition(
            f"{text!r} has no node; write for example h100=8x4", code="Malformed"
        )
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if key not in _KEYS or not equals or not value or key in stated:
            raise InvalidComposition(
                f"{word!r} is not one of {', '.join(f'{k}=...' for k in _KEYS)}, each at most "
                f"once; a composition itself has no spaces",
                code="Unknown",
            )
        stated[key] = value
    batch, origin = stated.get("batch"), stated.get("origin", "")
    if batch is not None and (not batch.isdecimal() or not 1 <= int(batch) <= MOST_SAMPLES):
        raise InvalidComposition(
            f"batch={batch} is no number of samples; give 1 to {MOST_SAMPLES:,}",
            field="batch",
            code="Malformed",
        )
    if origin and origin not in ORIGINS:
        raise InvalidComposition(
            f"origin={origin} is none of {', '.join(ORIGINS)}", field="origin", code="Unknown"
        )
    size = None if batch is None else int(batch)
    return ListedComposition(stated.get("name", text), text, size, origin)


@cache
def committed_sets() -> Mapping[str, tuple[ListedComposition, ...]]:
    """{file name without ending: its compositions} of all sets that come with Heddle."""
    return {path.stem: read_composition_file(path) for path in sorted(COMMITTED.glob("*.txt"))}
