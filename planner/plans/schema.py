"""The JSON of a plan, checked before anything is built from it.

Invariant: what passes has every key with a value of the right type; whether it tiles model, batch
and nodes is `planner.plans.plan.faults`' question.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from planner.errors import InvalidPlan
from planner.model.shape import StageRecompute
from planner.wording import did_you_mean

Whole = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1)]
Index = Annotated[int, Field(strict=True, ge=0)]


def _known(how: str) -> str:
    if how not in get_args(StageRecompute):
        raise PydanticCustomError("recompute", "one of none, selective, full")
    return how


Recomputed = Annotated[str, AfterValidator(_known)]

_Form = TypeVar("_Form")
_WANTED = {"tuple_type": "a list", "dataclass_type": "an object"}  # as JSON calls them


def check_spelling(rows: Sequence[Mapping[str, Any]], form: type) -> None:
    """Refuse a key of a row that is no field of the form, but much like one; others are ignored.

    Raises:
        InvalidPlan: with the key, and the field that may have been meant.
    """
    names = [field.name for field in fields(form)]
    for key in (key for row in rows for key in row if key not in names):
        if near := did_you_mean(str(key), names):
            raise InvalidPlan(
                f"the plan has the key {key!r}{near}; it is no part of a plan",
                field=str(key),
                code="Unknown",
            )


def read_plan(data: Mapping[str, Any], form: type[_Form]) -> _Form:
    """Build a plan of that form from its JSON; further keys (prices, origin) are ignored.

    Raises:
        InvalidPlan: the first wrong key, with what was found and what was expected.
    """
    try:
        return TypeAdapter(form).validate_python(data)
    except ValidationError as error:
        first: Mapping[str, Any] = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the whole"
        if first["type"] == "missing":
            what = f"the key {key!r} is missing"
        else:
            wanted = _WANTED.get(first["type"], first["msg"].removeprefix("Input should be "))
            what = f"{key} is {reprlib.repr(first['input'])}, expected {wanted}"
        raise InvalidPlan(
            f"this is not a plan: {what}; `heddle plan` prints one as JSON", code="Unreadable"
        ) from None
