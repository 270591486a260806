"""Keys of the JSON objects that describe a model and its parts."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from planner.errors import InvalidWorkload


def require_keys(part: type, data: object, where: str) -> dict[str, Any]:
    """A copy of a JSON object whose keys are the fields of a dataclass.

    Args:
        part: the dataclass; its fields without a default are required.
        data: what stands in the JSON.
        where: what it describes, as a sentence begins: `the model`, `the model's experts`.

    Raises:
        InvalidWorkload: it is no object, or a key is unknown or missing.
    """
    if not isinstance(data, Mapping):
        raise InvalidWorkload(
            f"{where} is {reprlib.repr(data)}; it must be a JSON object", code="Malformed"
        )
    known = {field.name: field for field in fields(part)}
    for key in data:
        if key not in known:
            raise InvalidWorkload(
                f"{where} has the unknown key {reprlib.repr(key)}; allowed are {', '.join(known)}",
                field=key,
                code="Unknown",
            )
    for key, field in known.items():
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if key not in data and not has_default:
            raise InvalidWorkload(
                f"{where} lacks the key {key!r}; add it", field=key, code="Missing"
            )
    return dict(data)
