"""Words of the messages of the operator: names in a list, and how a process ended.

Messages are whole clauses without a capital and a full stop, because they stand behind a colon in
conditions, Events and lines of a log.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_NAMES = 3


def named(noun: str, names: Sequence[str]) -> str:
    """`pod a`, `pods a and b`, `pods a, b, c and 4 more`: a job may have many."""
    if len(names) == 1:
        return f"{noun} {names[0]}"
    if len(names) > MOST_NAMES:
        first = ", ".join(names[:MOST_NAMES])
        return f"{noun}s {first} and {len(names) - MOST_NAMES} more"
    return f"{noun}s {', '.join(names[:-1])} and {names[-1]}"


def shortened(text: str, most_bytes: int) -> str:
    """The text, or as much of its start as fits in so many bytes of UTF-8."""
    data = text.encode()
    if len(data) <= most_bytes:
        return text
    return data[: most_bytes - len(" ...")].decode(errors="ignore") + " ..."


def ended_with(code: int) -> str:
    """How a process, or several, ended.

    Args:
        code: its exit status, or minus the signal that killed it.
    """
    return f"ended by signal {-code}" if code < 0 else f"ended with exit status {code}"
