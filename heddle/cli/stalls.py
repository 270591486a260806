"""The line that says how long a change of plan took, and why."""

from __future__ import annotations

from collections.abc import Mapping

from worker.stall import PARTS


def stall_words(stall_s: float, parts: Mapping[str, float]) -> str:
    """A stall and its parts in the order in which they happen, without those that cost nothing.

    Args:
        stall_s: seconds.
        parts: seconds by `<part>_s`, in any order: the API server sorts them by name.
    """
    shown = " + ".join(
        f"{name.removesuffix('_s')} {1000 * part:.0f}"
        for name, part in sorted(parts.items(), key=_place)
        if part >= 5e-4
    )
    return f"stall {1000 * stall_s:.0f} ms = {shown or '0'}"


def stall_line(
    reason: str,
    stall_s: float,
    parts: Mapping[str, float],
    restart_s: float | None,
    from_kill_s: float | None = None,
) -> str:
    """One reconfiguration: its stall by part, beside the time from the kill and a restart's."""
    line = f"{reason}: {stall_words(stall_s, parts)}"
    if from_kill_s is not None:
        line += f", {1000 * from_kill_s:.0f} ms from the kill"
    if restart_s is None:
        return line
    return f"{line}; a cold restart takes {restart_s:.1f} s and loses steps since the checkpoint"


def _place(part: tuple[str, float]) -> int:
    known = [f"{name}_s" for name in PARTS]
    return known.index(part[0]) if part[0] in known else len(known)
