"""The words of a training command in a shell script, with the variables that it sets by hand.

Pure; nothing is run.  Read are assignments of text, lists in brackets, `$NAME`, `${NAME}`,
`${NAME:-otherwise}`, quotes, continued lines, and conditions that compare text.
Invariant: what only a shell can know stays in the words as it was written, and `reasons` says why;
whoever needs such a word refuses it.
Source: the shell command language of POSIX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from heddle.convert.table import ARGUMENTS
from heddle_operator.apis.errors import InvalidArguments

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})(\+?)=(.*)", re.DOTALL)
_PLAIN = re.compile(rf"\$({_NAME})|\$\{{({_NAME})(?:\[[@*]\])?\}}")
_OTHERWISE = re.compile(rf"\$\{{({_NAME}):?[-=]([^{{}}$`]*)\}}")
_DOCUMENT = re.compile(rf"<<-?[ \t]*['\"]?({_NAME})['\"]?")
_REDIRECTION = re.compile(r"(?:\d*[<>]|&>)[<>&]*[ \t]*[^ \t\n;|]*")
_BLANK = re.compile(r"[ \t\n]+")
_KEPT = "\u00a0"  # a blank within what stays as it was written
_EXPORTS = ("export", "declare", "local", "readonly", "typeset")
_LEADS = ("then", "do", "{", "exec", "time", "eval")
Branch = Literal["taken", "passed", "done", "unknown"]


@dataclass(frozen=True, slots=True)
class Script:
    """Content of a launch script.

    Attributes:
        words: of the one training command.
        reasons: {a part of a word that a shell alone knows: why, with its line}.
    """

    words: tuple[str, ...]
    reasons: Mapping[str, str]


@dataclass(slots=True)
class _Statement:
    """Words up to the end of a command; `chained`: it runs only if another one did or failed."""

    line: int
    words: list[str] = field(default_factory=list)
    chained: bool = False


def read_script(text: str) -> Script:
    """The training command of a script, or of a file that holds arguments alone.

    Raises:
        InvalidArguments: a quotation mark is left open, or two commands train.
    """
    reader = _Reader(text.replace("\r\n", "\n"))
    statements = [statement for statement in reader.statements() if statement.words]
    if statements and statements[0].words[0].startswith("-"):
        return Script(tuple(w for s in statements for w in s.words), reader.reasons)
    commands: list[_Statement] = []
    for statement in statements:
        if commands and statement.words[0].startswith("--"):  # a line that forgot its backslash
            commands[-1].words += statement.words
        elif statement.words[0] not in ("echo", "printf"):
            commands.append(statement)
    commands.sort(key=_known, reverse=True)  # stable: the first of equals stays first
    training = [one for one in commands if "--num-layers" in one.words] or commands[:1]
    if len(training) > 1:
        raise InvalidArguments(
            f"lines {training[0].line} and {training[1].line} of the script both train; leave one "
            "in the file",
            code="GivenTwice",
        )
    return Script(tuple(training[0].words) if training else (), reader.reasons)


def _known(statement: _Statement) -> int:
    return sum(word.partition("=")[0] in ARGUMENTS for word in statement.words)


class _Reader:
    """Goes through a script once; variables have the value of where it is."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.values: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.branches: list[Branch] = []
        self.ends_at: list[str] = []  # words that end the here-documents of this line
        self.naming: str | None = None  # the variable that is being set
        self.is_chained = False

    @property
    def line(self) -> int:
        """Of where it is, from 1."""
        return self.text.count("\n", 0, self.at) + 1

    def statements(self) -> Iterator[_Statement]:
        """Each command that may run, its variables replaced."""
        while self.at < len(self.text):
            statement = self._statement()
            if (found := self._run(statement)) is not None:
                yield found

    def _statement(self) -> _Statement:
        """Read words up to the end of a command."""
        found = _Statement(self.line, chained=self.is_chained)
        self.is_chained = False
        while self.at < len(self.text):
            char, rest = self.text[self.at], self.text[self.at : self.at + 2]
            if rest == "\\\n":
                self.at += 2
            elif char in " \t":
                self.at += 1
            elif char == "#":
                self._skip_to("\n")
            elif char == "\n":
                self.at += 1
                self._skip_documents()
                break
            elif rest in ("&&", "||", ";;"):
                self.at, self.is_chained = self.at + 2, rest != ";;"
                break
            elif _REDIRECTION.match(self.text, self.at):
                self._redirect()
            elif char in ";&|":
                self.at += 1
                break
            else:
                self._words(found)
        return found

    def _words(self, found: _Statement, ends: str = " \t\n;&|<>") -> None:
        """One word up to one of `ends`, which a variable may turn into several or none."""
        match = re.compile(rf"({_NAME})\+?=").match(self.text, self.at)
        is_first = all(word in _EXPORTS or _ASSIGNMENT.match(word) for word in found.words)
        self.naming = match[1] if match and is_first else None
        if self.naming and match and self.text.startswith("(", match.end()):
            found.words.append(match[0] + self._list(match.end()))
            return
        text, is_quoted, parts = "", False, []
        while self.at < len(self.text) and self.text[self.at] not in ends:
            char = self.text[self.at]
            if char == "'":
                text, is_quoted = text + self._single(), True
            elif char == '"':
                text, is_quoted = text + self._double(), True
            elif char == "\\":
                text += self._escaped("")
            elif char in "$`":
                whole = self._expansion()
                if self.naming:
                    text += whole
                    continue
                first, *others = _BLANK.split(whole)
                parts += [text + first, *others] if others else []
                text = parts.pop() if others else text + first
            else:
                text, self.at = text + char, self.at + 1
        words = [*parts, text]
        found.words += [word for word in words if word or is_quoted]
        self.naming = None

    def _list(self, start: int) -> str:
        """The words of a list in brackets, with a blank between."""
        self.at, inner = start + 1, _Statement(self.line)
        naming = self.naming
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] in " \t\n":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "#":
                self._skip_to("\n")
            else:
                self._words(inner, " \t\n)")
        self.at, self.naming = self.at + 1, naming
        return " ".join(inner.words)

    def _single(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise InvalidArguments(
                "a quotation mark of the arguments is never closed", code="Unreadable"
            )
        found, self.at = self.text[self.at + 1 : end], end + 1
        return found

    def _double(self) -> str:
        self.at, found = self.at + 1, ""
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char == "\\":
                found += self._escaped("\\")
            elif char in "$`":
                found += self._expansion()
            else:
                found, self.at = found + char, self.at + 1
        if self.at >= len(self.text):
            raise InvalidArguments(
                "a quotation mark of the arguments is never closed", code="Unreadable"
            )
        self.at += 1
        return found

    def _escaped(self, otherwise: str) -> str:
        """The next sign after a backslash; in quotes `otherwise` stays before most."""
        following, self.at = self.text[self.at + 1 : self.at + 2], self.at + 2
        if following == "\n":
            return ""
        return following if not otherwise or following in '$`"\\' else otherwise + following

    def _expansion(self) -> str:
        """The value of what begins with a dollar or a backquote."""
        if self.text[self.at] == "`":
            return self._unknown(self._to_closing("`"), "the output of a command")
        if self.text.startswith("$((", self.at):
            return self._unknown(self._to_closing("))"), "a sum")
        if self.text.startswith("$(", self.at):
            return self._unknown(self._to_closing(")"), "the output of a command")
        match = _PLAIN.match(self.text, self.at)
        if match is not None:
            line, self.at = self.line, match.end()
            name = match[1] or match[2]
            if name not in self.values:
                self.reasons.setdefault(f"${name}", f"line {line} uses {name}, which nothing sets")
            return self.values.get(name, f"${name}")
        match = _OTHERWISE.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return self.values.get(match[1], match[2])
        if self.text.startswith("${", self.at):
            return self._unknown(self._to_closing("}"), "an expansion that is not read here")
        found, self.at = self.text[self.at : self.at + 2], self.at + 2
        if found[1:].isdigit() or found[1:] in ("@", "*"):
            return self._unknown(found, "an argument of the script")
        return found

    def _unknown(self, written: str, what: str) -> str:
        """A value that only a shell knows, in one piece; the reason is kept."""
        line = self.text.count("\n", 0, self.at - len(written)) + 1
        where = f"line {line} sets {self.naming} to {what}"
        where = where if self.naming else f"line {line} has {what} there"
        kept = _BLANK.sub(_KEPT, written)
        self.reasons.setdefault(kept, where)
        return kept

    def _to_closing(self, sign: str) -> str:
        """The text up to a closing sign, brackets within it counted."""
        start, depth = self.at, 0
        opening = {")": "(", "))": "(", "}": "{"}.get(sign)
        self.at += 1
        while self.at < len(self.text):
            char, self.at = self.text[self.at], self.at + 1
            depth += char == opening
            depth -= char == sign[0]
            if depth <= 0 and char == sign[0]:
                break
        return self.text[start : self.at]

    def _redirect(self) -> None:
        """Leave out where output goes; remember a here-document."""
        document = _DOCUMENT.match(self.text, self.at)
        if document:
            self.ends_at.append(document[1])
        match = document or _REDIRECTION.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def _skip_documents(self) -> None:
        for end in self.ends_at:
            while self.at < len(self.text):
                start = self.at
                self._skip_to("\n")
                is_end = self.text[start : self.at].strip() == end
                self.at += 1
                if is_end:
                    break
        self.ends_at = []

    def _skip_to(self, sign: str) -> None:
        found = self.text.find(sign, self.at)
        self.at = found if found >= 0 else len(self.text)

    def _run(self, statement: _Statement) -> _Statement | None:
        """Follow conditions and set variables; the statement where it is another command."""
        words = statement.words
        while words and (words[0] in _LEADS or self._branches(words)):
            words.pop(0)
        if not words or "passed" in self.branches or "done" in self.branches:
            return None
        names = words[1:] if words[0] in _EXPORTS else words
        matches = [_ASSIGNMENT.fullmatch(word) for word in names]
        if not all(matches):
            while words and _ASSIGNMENT.fullmatch(words[0]):
                words.pop(0)  # for this command's environment alone
            statement.words = [part for word in words for part in _inner(word)]
            return statement
        is_known = not statement.chained and "unknown" not in self.branches
        for name, more, value in (match.groups() for match in matches if match):
            if is_known:
                self.values[name] = self.values.get(name, "") + value if more else value
            else:
                self.values[name] = f"${name}"
                self.reasons[f"${name}"] = f"line {statement.line} sets {name} within a condition"
        return None

    def _branches(self, words: list[str]) -> bool:
        """Whether a command begins or ends a branch; then only what follows its word is left."""
        word, rest = words[0], words[1:]
        if word in ("if", "for", "while", "until", "case"):
            self.branches.append(_branch(rest) if word == "if" else "unknown")
            del words[1:]
        elif word in ("elif", "else") and self.branches:
            before = self.branches.pop()
            if before == "passed":
                self.branches.append(_branch(rest) if word == "elif" else "taken")
            else:
                self.branches.append("unknown" if before == "unknown" else "done")
            del words[1 : len(words) if word == "elif" else 1]
        elif word in ("fi", "done", "esac") and self.branches:
            self.branches.pop()
        else:
            return False
        return True


def _branch(words: list[str]) -> Branch:
    """Whether a condition that compares text holds."""
    match words:
        case ["[" | "[[", *inner, "]" | "]]"] if not any("$" in word for word in inner):
            match inner:
                case [one, "=" | "==", other]:
                    return "taken" if one == other else "passed"
                case [one, "!=", other]:
                    return "taken" if one != other else "passed"
                case ["-z" | "-n" as which, text]:
                    return "taken" if (which == "-n") == bool(text) else "passed"
    return "unknown"


def _inner(word: str) -> list[str]:
    """The words of a command that is one word, as `bash -c` and `eval` take it."""
    parts = [part for part in _BLANK.split(word) if part]
    return parts if any(part.partition("=")[0] in ARGUMENTS for part in parts) else [word]
