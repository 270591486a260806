"""YAML as a user means it: a key that stands twice is a mistake, and 1e2 is a number.

Invariant: whatever is wrong with a text is a `yaml.YAMLError`, a nesting without end included.
Source: YAML 1.2 demands unique keys and reads 1e2 as a number; PyYAML does neither.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from planner.errors import HeddleError
from planner.given_text import read_text
from planner.wording import reason_of

SECOND_DOCUMENT = "expected a single document in the stream"  # PyYAML's words for it


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: list[object] = []
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice; keep one", key_node.start_mark
                )
            seen.append(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def load_yaml(text: str, kind: str | None = None) -> object:
    """The data of a YAML (or JSON) text; only plain data, no objects.

    Args:
        text: of one document.
        kind: of the object of Kubernetes that is meant, where there are several documents.

    Raises:
        yaml.YAMLError: it is no YAML, has a key twice, or is nested beyond all measure; or it has
            several documents, and not one of that kind.
    """
    try:
        data: object = yaml.load(text, _Loader) if kind is None else _of_kind(text, kind)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except (ValueError, AttributeError, KeyError) as error:  # of a value, as 2026-02-30 or !!int x
        raise yaml.YAMLError(f"a value has another form than its kind: {error}") from None
    return data


def _of_kind(text: str, kind: str) -> object:
    """The only document of a text, or the only one of a kind."""
    found = [one for one in yaml.load_all(text, _Loader) if one is not None]
    if len(found) > 1:
        found = [one for one in found if isinstance(one, Mapping) and one.get("kind") == kind]
        if len(found) != 1:
            raise yaml.YAMLError(f"it holds {len(found)} documents of kind {kind}; keep one")
    return found[0] if found else None


def read_yaml(path: Path, what: str, error: type[HeddleError], kind: str | None = None) -> object:
    """The data of a YAML (or JSON) file.

    Args:
        path: of the file, in UTF-8; `-` is standard input.
        what: it holds, in words.
        error: to raise.
        kind: of the object that is meant; see `load_yaml`.

    Raises:
        error: the file cannot be read, or is not YAML; its code is `Unreadable`.
    """
    try:
        return load_yaml(read_text(path), kind)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise error(
            f"{what} {path} cannot be read: {_reason_of(problem)}", code="Unreadable"
        ) from None


def _reason_of(problem: Exception) -> str:
    """The mistake and its place, without the names that PyYAML uses."""
    if isinstance(problem, yaml.reader.ReaderError):
        return "it holds a character that YAML does not allow"
    if not isinstance(problem, yaml.MarkedYAMLError) or problem.problem_mark is None:
        return reason_of(problem)
    mark, words = problem.problem_mark, problem.problem
    where = f"line {mark.line + 1}, column {mark.column + 1}"
    if problem.context == SECOND_DOCUMENT:
        return f"it holds more than one document ({where}); keep one"
    if isinstance(problem, yaml.constructor.ConstructorError):
        return f"{words} ({where})"
    return f"it is not YAML ({where}: {words})"
