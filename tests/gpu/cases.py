"""Cases of a check, none of which hides another: an error stands in the place of a result."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any


def tried(name: str, work: Callable[[], Any]) -> dict[str, Any]:
    """{name: what the work answers, or {"error": what it raised}}; the stack goes to the log."""
    try:
        return {name: work()}
    except Exception as error:
        traceback.print_exc()
        first = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        return {name: {"error": first[:300]}}


def has_failed(cases: Mapping[str, Any]) -> bool:
    """Whether a case has an error, or there is none."""
    return not cases or any(isinstance(one, dict) and "error" in one for one in cases.values())
