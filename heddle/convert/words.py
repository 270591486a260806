"""A command line of Megatron as names and values, as the table of arguments reads it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heddle.convert.table import ARGUMENTS, LAUNCHER
from heddle_operator.apis.errors import InvalidArguments
from planner.wording import did_you_mean

_IS_NAME = re.compile(r"--?[A-Za-z]")
_FROM_A_SHELL = re.compile(r"\$\w+|\$\{[^}]*\}|\$\(.*\)|`[^`]*`|\$.*")


@dataclass(frozen=True, slots=True)
class Words:
    """Arguments with their values.

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
            raise InvalidArguments(
                f"{name} is {text!r}; it must be a number", field=name, code="Malformed"
            )
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
            raise InvalidArguments(
                f"{name} is {value:g}; it must be a whole number", field=name, code="Malformed"
            )
        return int(value)


def read_words(given: Sequence[str], reasons: Mapping[str, str] | None = None) -> Words:
    """The names and values; launcher, its options and the program stand before them.

    Args:
        given: the words of a command.
        reasons: why a shell alone knows a part of a word; see `Script`.

    Raises:
        InvalidArguments: a value is missing, is a shell's variable, or stands where none belongs.
    """
    values: dict[str, tuple[str, ...]] = {}
    unknown: list[str] = []
    words = [part for word in given for part in _parts(word)]
    rest = _behind_program(words)
    while rest and not _IS_NAME.match(rest[0]):
        word = rest.pop(0)
        if len(rest) + 1 < len(words):  # the program stands before it
            _refuse_arguments_of_a_shell([word], 0, reasons or {})
    while rest:
        name, found = rest.pop(0), []
        while rest and not _IS_NAME.match(rest[0]):
            found.append(rest.pop(0))
        argument = ARGUMENTS.get(name)
        if name.lstrip("-").replace("-", "_") in LAUNCHER:
            continue
        _refuse_arguments_of_a_shell(found, argument.values if argument else 1, reasons or {})
        if argument is None:
            unknown.append(name + did_you_mean(name, ARGUMENTS))
            continue
        written = [word for word in found if "$" in word or "`" in word]
        if written and argument.fate in ("job", "model"):
            raise InvalidArguments(
                f"{name} is {_shown(written[0])!r}, {_why(written[0], reasons or {})}; write its "
                "value",
                field=name,
                code="Malformed",
            )
        if argument.values >= 0 and len(found) != argument.values:
            raise InvalidArguments(
                f"{name} takes {argument.values or 'no'} value{'s' * (argument.values != 1)}, "
                f"found {' '.join(found) or 'none'}",
                field=name,
                code="Malformed",
            )
        values[name] = tuple(found)
    return Words(values, tuple(dict.fromkeys(unknown)))


def _parts(word: str) -> list[str]:
    """`--lr=1e-4` is two words."""
    name, sign, value = word.partition("=")
    return [name, value] if sign and _IS_NAME.match(name) else [word]


def _behind_program(words: list[str]) -> list[str]:
    """The words after the program, if no argument of Megatron stands before it."""
    for index, word in enumerate(words):
        if word in ARGUMENTS:
            break
        if word.endswith(".py"):
            return words[index + 1 :]
    return words


def _refuse_arguments_of_a_shell(found: list[str], values: int, reasons: Mapping[str, str]) -> None:
    """Refuse a variable behind an argument's values: nobody knows which arguments it holds."""
    extra = found[values:] if values >= 0 else []
    if extra and extra[0].startswith(("$", "`")):
        raise InvalidArguments(
            f"the arguments hold {_shown(extra[0])!r}, {_why(extra[0], reasons)}; write its value",
            code="Malformed",
        )


def _why(word: str, reasons: Mapping[str, str]) -> str:
    match = _FROM_A_SHELL.search(word)
    written = match[0] if match else word
    return f"but {reasons[written]}" if written in reasons else "a variable of a shell"


def _shown(word: str) -> str:
    return word.replace("\u00a0", " ")
