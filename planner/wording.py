"""Words of messages that depend on what was found: kinds, numbers, likely names, reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MOST_CLAUSES = 3  # that a message says; it counts the others

# By the type of pydantic's error; what is in braces is in its context.
_DEMANDS = {
    "bool_parsing": "it must be true or false",
    "bool_type": "it must be true or false",
    "dict_type": "it must be a mapping",
    "finite_number": "it must be a finite number",
    "float_parsing": "it must be a number",
    "float_type": "it must be a number",
    "greater_than": "it must be above {gt}",
    "greater_than_equal": "it must be at least {ge}",
    "int_from_float": "it must be a whole number",
    "int_parsing": "it must be a whole number",
    "int_parsing_size": "it must be a whole number of fewer digits",
    "int_type": "it must be a whole number",
    "less_than": "it must be below {lt}",
    "less_than_equal": "it must be at most {le}",
    "list_type": "it must be a list",
    "literal_error": "it must be {expected}",
    "mapping_type": "it must be a mapping",
    "model_attributes_type": "it must be a mapping",
    "model_type": "it must be a mapping",
    "string_too_long": "it must have {max_length} or fewer characters",
    "string_too_short": "it must have {min_length} or more characters",
    "string_type": "it must be a text",
    "too_long": "it must have {max_length} or fewer entries",
    "too_short": "it must have {min_length} or more entries",
    "tuple_type": "it must be a list",
}


def demand_of(error: Mapping[str, Any]) -> str:
    """Demand on a value, in plain words, by one of pydantic's errors about it."""
    words = _DEMANDS.get(error["type"])
    if words is None:
        return str(error["msg"]).removeprefix("Value error, ")
    limits = {key: _number(value) for key, value in error.get("ctx", {}).items()}
    return words.format(**limits)


def code_of(error: Mapping[str, Any]) -> str:
    """Code of an error of ours, by one of pydantic's errors."""
    kind = error["type"]
    if kind in ("missing", "extra_forbidden", "literal_error"):
        return "Missing" if kind == "missing" else "Unknown"
    if kind.startswith(("greater", "less", "finite", "too_", "string_too_")):
        return "OutOfRange"
    if kind == "value_error" and isinstance(error["input"], Mapping):
        return "Contradiction"  # of fields that are right alone
    return "Malformed"


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def kind_of(found: object) -> str:
    """Kind of a value from JSON or YAML, in words for a message: "a list", "nothing"."""
    kinds = {dict: "a mapping", list: "a list", str: "a text", bool: "a truth value"}
    if found is None:
        return "nothing"
    return kinds.get(type(found), "a number" if isinstance(found, int | float) else "another value")


def counted(number: int, noun: str) -> str:
    """The number and its noun, in the plural unless it is 1: `1 node`, `3 nodes`, `2 batches`."""
    ending = "" if number == 1 else "es" if noun.endswith(("h", "s", "x")) else "s"
    return f"{number:,} {noun}{ending}"


def joined(clauses: Iterable[str]) -> str:
    """The first different clauses, and the number of the others: `a; b; c and 7 more`."""
    found = list(dict.fromkeys(clauses))
    more = f" and {len(found) - MOST_CLAUSES:,} more" if len(found) > MOST_CLAUSES else ""
    return "; ".join(found[:MOST_CLAUSES]) + more


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


def first_line(error: BaseException) -> str:
    """The first line of an error's words: libraries write traces and settings below it."""
    return str(error).partition("\n")[0]


def cut(text: str, most: int) -> str:
    """A text of at most so many characters; where some are left out, `...` says so."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def reason_of(error: Exception) -> str:
    """Why a file could not be read, without the names that Python and its libraries use.

    Made for `<what> <path> cannot be read: <reason>`; the path is not said again.
    """
    from json import JSONDecodeError

    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, KeyError):
        return f"it has no key {error.args[0]!r}"
    if isinstance(error, JSONDecodeError):
        if not error.doc.strip():
            return "it is empty"
        where = f"line {error.lineno}, column {error.colno}"
        return f"it is not JSON ({where}: {error.msg[:1].lower()}{error.msg[1:]})"
    return " ".join(str(error).split())
