"""Attempts to save: their names in a vault, which of them are whole, and which go.

Two worlds never write into one attempt, as its name has the epoch.  A later epoch is newer,
whatever its step: a job that fell back to an older step goes on from there.
Invariant: an attempt loses its manifest before any other object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

MANIFEST = "manifest.json"
_FORM = re.compile(r"step-(\d+)\.e(\d+)/(.+)")


class Attempt(NamedTuple):
    """A save of one step by the ranks of one epoch; attempts sort by age, the newest last."""

    epoch: int
    step: int

    def __str__(self) -> str:
        """The name of its folder."""
        return f"step-{self.step}.e{self.epoch}"

    def name(self, object_: str) -> str:
        """The name of one of its objects in the vault."""
        return f"{self}/{object_}"

    @property
    def manifest(self) -> str:
        """The name of its manifest."""
        return self.name(MANIFEST)


def objects_of(names: Iterable[str]) -> dict[Attempt, tuple[str, ...]]:
    """{attempt: names of its objects}, the oldest first; other names are left out."""
    found: dict[Attempt, list[str]] = {}
    for name in names:
        if (match := _FORM.fullmatch(name)) is not None:
            found.setdefault(Attempt(int(match[2]), int(match[1])), []).append(name)
    return {attempt: tuple(found[attempt]) for attempt in sorted(found)}


def complete(names: Sequence[str]) -> tuple[Attempt, ...]:
    """Attempts with a manifest, the newest first."""
    found = objects_of(names)
    return tuple(attempt for attempt in reversed(found) if attempt.manifest in found[attempt])


def best_of(losses: Mapping[Attempt, float | None]) -> Attempt | None:
    """The attempt with the lowest held-out loss, of equal ones the newest; None: none has a loss.

    Args:
        losses: {attempt: that of an evaluation at its very step}, finite; None: it has none.
    """
    known = [(loss, attempt) for attempt, loss in losses.items() if loss is not None]
    least = min((loss for loss, _ in known), default=None)
    return max((attempt for loss, attempt in known if loss == least), default=None)


def outdated(
    names: Sequence[str], last: int, losses: Mapping[Attempt, float | None] | None = None
) -> tuple[str, ...]:
    """Objects to remove, in this order, so that so many complete attempts are kept, and the best.

    Attempts without a manifest go too, if they are older than the newest complete one.  A rank that
    stalled may still commit such a manifest, before or amid this removal, so it is removed both
    first and last, listed or not.

    Args:
        names: of all objects.
        last: number of complete attempts that stay, the newest.
        losses: of the complete attempts; the best stays too. None: it has no such rule.
    """
    found, whole = objects_of(names), complete(names)
    if not whole:
        return ()
    kept = set(whole[:last]) | {attempt for attempt in found if attempt > whole[0]}
    if losses is not None:
        best = best_of({attempt: losses.get(attempt) for attempt in whole})
        kept |= {best} if best is not None else set()
    return tuple(
        name
        for attempt, objects in found.items()
        if attempt not in kept
        for name in to_remove(attempt, objects)
    )


def to_remove(attempt: Attempt, objects: Iterable[str]) -> tuple[str, ...]:
    """Objects of an attempt in the order in which they may go; its manifest may come meanwhile."""
    others = sorted({*objects} - {attempt.manifest})
    return (attempt.manifest, *others, attempt.manifest)
