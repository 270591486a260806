"""Times as Kubernetes and users write them, in seconds of the wall clock."""

from __future__ import annotations

from datetime import UTC, datetime


def wall_s(text: str) -> float:
    """Unix seconds of a time in ISO 8601; one without a zone is UTC.

    Raises:
        ValueError: the text is no time.
    """
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def wall_s_if_time(value: object) -> float | None:
    """Unix seconds of what may be a time; None: it is none."""
    try:
        return wall_s(str(value))
    except ValueError:
        return None
