"""The documents of a unit of input: text files, lines of JSON, rows of Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from planner.errors import FIELD
from planner.wording import kind_of, reason_of
from worker.data.making.units import Unit, is_endless, open_parquet, parquet_batches
from worker.errors import InvalidDataset


class Keys(NamedTuple):
    """Which values of a record are read.

    Attributes:
        text: of a record that is a text.
        prompt: of a pair, whose completion alone is learnt; None: records are texts.
        completion: of a pair.
    """

    text: str = "text"
    prompt: str | None = None
    completion: str | None = None

    @property
    def wanted(self) -> tuple[str, ...]:
        """The keys that a record must have."""
        if self.prompt is None or self.completion is None:
            return (self.text,)
        return self.prompt, self.completion


class Document(NamedTuple):
    """A text, or a prompt and its completion; UTF-8."""

    text: bytes
    completion: bytes | None = None


class Skipped(NamedTuple):
    """A file that could not be read or is no UTF-8 text."""

    path: str


def documents(unit: Unit, keys: Keys) -> Iterator[Document | Skipped]:
    """The documents of a unit in order, and in their midst the files that are no text.

    Raises:
        InvalidDataset: a record is damaged or lacks a key.
    """
    if unit.kind == "text":
        if keys.prompt is not None:
            raise InvalidDataset(
                f"input {unit.files[0]!r} is plain text, which has no prompts; give .jsonl or "
                f".parquet files, or no {FIELD}",
                field="prompt_key",
                code="Unsupported",
            )
        yield from (_read_text(Path(file)) or Skipped(file) for file in unit.files)
    elif unit.kind == "lines":
        yield from _lines(unit, keys)
    else:
        yield from _rows(unit, keys)


def _read_text(path: Path) -> Document | None:
    """A file of UTF-8 text; None if it cannot be read or is something else, as a pipe is."""
    if is_endless(path):
        return None
    try:
        text = path.read_bytes()
        text.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if b"\0" in text else Document(text)


def _lines(unit: Unit, keys: Keys) -> Iterator[Document]:
    """Of the lines that begin within the unit's range."""
    path = unit.files[0]
    try:
        file = Path(path).open("rb")  # noqa: SIM115 # closed below
    except OSError as error:
        raise InvalidDataset(
            f"input {path!r} cannot be read: {(error.strerror or '').lower()}; leave it out",
            code="Unreadable",
        ) from None
    with file:
        if unit.start:
            file.seek(unit.start - 1)
            file.readline()
        while (start := file.tell()) < unit.stop:
            line = file.readline()
            if line.strip():
                yield _document(_object(line, path, start), keys, path, start)


def _object(line: bytes, path: str, start: int) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        why = f"is not JSON (column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]})"
    except (ValueError, RecursionError) as error:  # a letter that is no UTF-8 is a ValueError
        why = f"is not JSON ({reason_of(error)})"
    else:
        why = ""
    if why:
        raise InvalidDataset(
            f"{_where(path, start)} {why}; correct it or leave it out", code="Malformed"
        )
    if not isinstance(found, dict):
        raise InvalidDataset(
            f"{_where(path, start)} holds {kind_of(found)}; each line is one object",
            code="Malformed",
        )
    return found


def _rows(unit: Unit, keys: Keys) -> Iterator[Document]:
    path = unit.files[0]
    table = open_parquet(path)
    names = table.schema_arrow.names
    for key in keys.wanted:
        if key not in names:
            raise InvalidDataset(
                f"input {path!r} has no column {key!r}; its columns are {', '.join(names)}",
                field=key,
                code="Unknown",
            )
    groups = list(range(unit.start, unit.stop))
    for batch in parquet_batches(path, table, groups, list(keys.wanted)):
        yield from (_document(record, keys, path, None) for record in batch.to_pylist())


def _document(record: Mapping[str, Any], keys: Keys, path: str, start: int | None) -> Document:
    texts = []
    for key in keys.wanted:
        if key not in record:
            raise InvalidDataset(
                f"{_where(path, start)} has no key {key!r}; its keys are {', '.join(record)}; "
                "name the key of the text, or the keys of prompt and completion",
                field=key,
                code="Unknown",
            )
        value = record[key]
        if not isinstance(value, str):
            raise InvalidDataset(
                f"{_where(path, start)} has {kind_of(value)} as {key!r}, not text; "
                "write the text itself there",
                field=key,
                code="Malformed",
            )
        texts.append(value.encode(errors="replace"))  # JSON can hold half of a surrogate pair
    return Document(*texts)


def _where(path: str, start: int | None) -> str:
    """A line by its number, which is looked for only when there is something to say."""
    if start is None:
        return f"a row of {path!r}"
    with Path(path).open("rb") as file:
        number = file.read(start).count(b"\n") + 1
    return f"line {number} of {path!r}"
