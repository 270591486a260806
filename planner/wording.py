"""Words of messages that depend on what was found: numbers with their noun, and likely names."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """The number and its noun, in the plural unless it is 1: `1 node`, `3 nodes`, `2 batches`."""
    ending = "" if number == 1 else "es" if noun.endswith(("h", "s", "x")) else "s"
    return f"{number:,} {noun}{ending}"


def did_you_mean(found: str, known: Iterable[str]) -> str:
    """` (did you mean 'h100'?)` where a known name is much like the one found; else nothing.

    Case does not count; a name that begins with the one found comes first.
    """
    from difflib import get_close_matches  # only where a name is wrong

    names = {name.lower(): name for name in known}
    wrong = found.lower()
    longer = sorted(name for name in names if wrong and name.startswith(wrong))
    near = longer or get_close_matches(wrong, names, n=1, cutoff=0.6)
    return f" (did you mean {names[near[0]]!r}?)" if near else ""
