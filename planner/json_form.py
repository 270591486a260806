"""Check data that came from a file against the form it must have.

A form is a function that returns the value, checked, or says where it first deviates.  Reading a
profile is part of every `heddle plan`, and a validation library takes longer to import than the
planner takes to answer.
Invariant: what passes has every key of its form, and no value of another type.
Source: combinators of decoders, as in Elm's `Json.Decode`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Form = Callable[[Any], Any]


class Misfit(Exception):
    """A value that does not fit its form.

    Attributes:
        keys: the way to it, from the outermost.
        found: as it is written; None where a key is missing.
        expected: what it should have been.
    """

    def __init__(self, found: str | None, expected: str) -> None:
        """At the value itself; the keys are added on the way out."""
        self.keys: tuple[str | int, ...] = ()
        self.found, self.expected = found, expected

    @property
    def key(self) -> str:
        """The way to the value, with dots; empty for the whole."""
        return ".".join(map(str, self.keys))


def text(value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise Misfit(repr(value), "a string")
    return value


def one_of(*allowed: str) -> Form:
    """One of these strings."""

    def form(value: Any) -> Any:
        if value not in allowed:
            raise Misfit(repr(value), " or ".join(map(repr, allowed)))
        return value

    return form


def whole(least: int | None = None) -> Form:
    """An integer, no smaller than that."""

    def form(value: Any) -> int:
        is_whole = type(value) is int  # True is no number
        if not is_whole or (least is not None and value < least):
            expected = "an integer" if least is None else f"an integer of at least {least}"
            raise Misfit(repr(value), expected)
        return int(value)

    return form


def digits(value: str) -> int:
    """A key that is an integer of at least 1."""
    if not value.isdecimal() or int(value) < 1:
        raise Misfit(repr(value), "an integer of at least 1 as key")
    return int(value)


def number(value: Any) -> float:
    """A finite number of 0 or more."""
    if type(value) not in (float, int) or not 0 <= value < math.inf:
        raise Misfit(repr(value), "a finite number of 0 or more")
    return float(value)


def above_0(value: Any) -> float:
    """A finite number above 0."""
    if number(value) == 0:
        raise Misfit(repr(value), "a finite number above 0")
    return float(value)


def optional(form: Form) -> Form:
    """That, or null."""
    return lambda value: None if value is None else form(value)


def pair(first: Form, second: Form) -> Form:
    """A list of two."""

    def form(value: Any) -> tuple[Any, Any]:
        if not isinstance(value, list) or len(value) != 2:
            raise Misfit(repr(value), "a list of two values")
        return _at(0, first, value[0]), _at(1, second, value[1])

    return form


def list_of(each: Form) -> Form:
    """A list, all of whose values have that form."""

    def form(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Misfit(repr(value), "a list")
        return [_at(index, each, item) for index, item in enumerate(value)]

    return form


def table_of(each: Form, name: Form = text) -> Form:
    """An object of any keys that have the one form, all of whose values have the other."""

    def form(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise Misfit(repr(value), "an object")
        return {_at(key, name, key): _at(key, each, item) for key, item in value.items()}

    return form


def record(
    required: Mapping[str, Form],
    defaults: Mapping[str, tuple[Form, Any]] | None = None,
    *,
    is_closed: bool = True,
) -> Form:
    """An object with these keys.

    Args:
        required: the form of each key that must be there.
        defaults: of the others, and the value that stands for one that is not there.
        is_closed: whether further keys are refused; else they are left out.
    """
    others = {} if defaults is None else defaults

    def form(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Misfit(repr(value), "an object")
        found = {}
        for key, check in required.items():
            if key not in value:
                missing = Misfit(None, "this key")
                missing.keys = (key,)
                raise missing
            found[key] = _at(key, check, value[key])
        for key, (check, default) in others.items():
            found[key] = _at(key, check, value[key]) if key in value else default
        for key in value if is_closed else ():
            if key not in found:
                _at(key, _unknown, value[key])
        return found

    return form


def _unknown(value: Any) -> None:
    raise Misfit(repr(value), "no such key")


def _at(key: str | int, form: Form, value: Any) -> Any:
    try:
        return form(value)
    except Misfit as misfit:
        misfit.keys = (key, *misfit.keys)
        raise
