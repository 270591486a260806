"""A command line of Megatron as names and values, as the table of arguments reads it."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from heddle_operator.apis.errors import InvalidArguments
from heddle_operator.convert.table import ARGUMENTS
from planner.wording import did_you_mean

_IS_NAME = re.compile(r"--?[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Words:
    """What was said.

    Attributes:
        values: of each known argument, the last time that it was said.
        unknown: names that the table does not hold.
    """

    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Whether a switch or argument was given."""
        return name in self.values

    def text(self, name: str, otherwise: str | None = None) -> str | None:
        """The value of an argument that has one."""
        return self.values[name][0] if name in self.values else otherwise

    def number(self, name: str, otherwise: float | None = None) -> float | None:
        """The value as a number.

        Raises:
            InvalidArguments: it is none.
        """
        text = self.text(name)
        if text is None:
            return otherwise
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InvalidArguments(f"{name} is {text!r}; it must be a number")
        return value

    def count(self, name: str, otherwise: int | None = None) -> int | None:
        """The value as a whole number.

        Raises:
            InvalidArguments: it is none.
        """
        value = self.number(name)
        if value is None:
            return otherwise
        if value != int(value):
            raise InvalidArguments(f"{name} is {value:g}; it must be a whole number")
        return int(value)


def words_of_text(text: str) -> list[str]:
    """The words of a shell script's part; lines that end in a backslash go on.

    Raises:
        InvalidArguments: a quotation mark is left open.
    """
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        raise InvalidArguments("a quotation mark of the arguments is never closed") from None


def read_words(given: Sequence[str]) -> Words:
    """The names and values; what stands before the first name is the program.

    Raises:
        InvalidArguments: a value is missing, is a shell's variable, or stands where none belongs.
    """
    values: dict[str, tuple[str, ...]] = {}
    unknown: list[str] = []
    rest = [part for word in given for part in _parts(word)]
    while rest and not _IS_NAME.match(rest[0]):
        rest.pop(0)
    while rest:
        name, found = rest.pop(0), []
        while rest and not _IS_NAME.match(rest[0]):
            found.append(rest.pop(0))
        argument = ARGUMENTS.get(name)
        if argument is None:
            unknown.append(name + did_you_mean(name, ARGUMENTS))
            continue
        variables = [word for word in found if "$" in word]
        if variables:
            raise InvalidArguments(
                f"{name} is {variables[0]!r}, a variable of a shell; write its value"
            )
        if argument.values >= 0 and len(found) != argument.values:
            raise InvalidArguments(
                f"{name} takes {argument.values or 'no'} value{'s' * (argument.values != 1)}, "
                f"found {' '.join(found) or 'none'}"
            )
        values[name] = tuple(found)
    return Words(values, tuple(dict.fromkeys(unknown)))


def _parts(word: str) -> list[str]:
    """`--lr=1e-4` is two words."""
    name, sign, value = word.partition("=")
    return [name, value] if sign and _IS_NAME.match(name) else [word]
