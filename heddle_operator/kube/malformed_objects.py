"""Objects that the API server stores and nobody can read: left out, and said once.

Any user of a cluster may label a pod as a job's, forge a record or leave an annotation out; the
operator follows all other objects as if that one were not there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from heddle_operator.state.recent import Recent
from planner.errors import HeddleError

LOG = logging.getLogger(__name__)
# What reading data of a wrong form raises: pydantic's and JSON's errors are ValueErrors.
UNREADABLE = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    HeddleError,
)
T = TypeVar("T")


class MalformedObjects:
    """Reads objects, and remembers which ones it has complained of."""

    def __init__(self) -> None:
        self._told: Recent[tuple[str, str]] = Recent()

    def read(self, body: Mapping[str, Any], view: Callable[[], T]) -> T | None:
        """Result of `view` on the object; None, and a warning once, if it is unreadable."""
        try:
            return view()
        except UNREADABLE as error:
            metadata = body.get("metadata") or {}
            version = str(metadata.get("uid")), str(metadata.get("resourceVersion"))
            if self._told.add(version):
                LOG.warning(
                    "%s %s/%s is left out, it cannot be read: %s",
                    body.get("kind", "object"),
                    metadata.get("namespace", "-"),
                    metadata.get("name", "?"),
                    what_is_wrong(error),
                )
            return None


def what_is_wrong(error: BaseException) -> str:
    """An error of reading in a few words, on one line."""
    words = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
