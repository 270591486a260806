"""The error of a process as another reads it: one line of JSON, the last on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

from planner.errors import HeddleError


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ended a process.

    Attributes:
        code: of the error; "Failed" where the process died without a line of its own.
        field: of the request that is wrong; None: none.
        message: one sentence.
    """

    code: str
    field: str | None
    message: str

    @classmethod
    def of(cls, error: HeddleError, names: Mapping[str, str] = MappingProxyType({})) -> Failure:
        """The failure that an error is; `names` are how the process calls the fields of errors."""
        return cls(error.code, error.field, error.named(names))

    @classmethod
    def read(cls, said: bytes, status: int) -> Failure:
        """The failure in what a process said on stderr before it ended with a status."""
        lines = said.decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"it said nothing (exit status {status})"
        try:
            return cls(**json.loads(last))
        except (ValueError, TypeError):
            return cls("Failed", None, last)

    def to_line(self) -> str:
        """The line that `read` reads."""
        return json.dumps(asdict(self))
