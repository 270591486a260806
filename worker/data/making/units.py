"""The input of `heddle data prepare`, cut into units of work that any process can read alone.

Invariant: the units, and so the dataset, depend on the input alone, never on how many processes
read it.  A unit is some text files, a range of the lines of a JSON Lines file, or row groups of a
Parquet file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from planner.wording import first_line
from worker.errors import InvalidDataset
from worker.training_settings import LINES_SUFFIXES, PARQUET_SUFFIXES, TEXT_SUFFIXES

Kind = Literal["text", "lines", "parquet"]
SUFFIXES = (*TEXT_SUFFIXES, *LINES_SUFFIXES, *PARQUET_SUFFIXES)  # of files in a folder
RULES = 2  # number of the rules by which texts become tokens; what older ones made is made anew
ROWS = 1024  # of Parquet at a time
UNIT_BYTES = 4 << 20  # some seconds of a tokenizer's time, so that little is lost with a kill


class Unit(NamedTuple):
    """A unit of input, read at once.

    Attributes:
        kind: of its files.
        files: text files in order, or the one file.
        start: first byte of the range, or first row group.
        stop: behind the last one.
        size: bytes to read, roughly.
    """

    kind: Kind
    files: tuple[str, ...]
    start: int
    stop: int
    size: int

    def digest(self, *settings: Any) -> str:
        """Names what comes of it: the unit, its files as they are now, and the settings."""
        text = json.dumps([RULES, self, [_state_of(file) for file in self.files], settings])
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def each_unit(inputs: Sequence[Path]) -> Iterator[Unit]:
    """All units of the input in its order, each found when it is asked for.

    Raises:
        InvalidDataset: at once, if an input is missing or plain JSON; later, if a Parquet file
            cannot be read.
    """
    for given in inputs:
        _check(given)
    return _units(inputs)


def left_out(inputs: Sequence[Path]) -> Counter[str]:
    """Number of files in the folders of the input that are of no kind that is read, by suffix."""
    names = (name for given in inputs if given.is_dir() for name in _names_in(given))
    others = (name for name in names if not name.lower().endswith(SUFFIXES))
    return Counter(Path(name).suffix.lower() for name in others)


def open_parquet(path: str) -> Any:
    """A Parquet file, by pyarrow, which comes with an extra of the package.

    Raises:
        InvalidDataset: pyarrow is not installed, or the file is damaged.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError:
        raise InvalidDataset(
            f"input {path!r} is Parquet, which needs pyarrow; in the checkout of Heddle run: "
            "pip install '.[data]'",
            code="Missing",
        ) from None
    try:
        return ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise _no_parquet(path, error) from None


def parquet_batches(path: str, table: Any, groups: list[int], columns: list[str]) -> Iterator[Any]:
    """Some rows at a time of these groups.

    Raises:
        InvalidDataset: the file is damaged there.
    """
    from pyarrow import ArrowException

    batches = table.iter_batches(ROWS, row_groups=groups, columns=columns)
    while True:
        try:
            yield next(batches)
        except StopIteration:
            return
        except (ArrowException, OSError) as error:
            raise _no_parquet(path, error) from None


def _no_parquet(path: str, error: Exception) -> InvalidDataset:
    return InvalidDataset(
        f"input {path!r} cannot be read as Parquet: {first_line(error) or 'damaged'}",
        code="Unreadable",
    )


def _kind_of(path: Path) -> Kind:
    suffix = path.suffix.lower()
    if suffix in LINES_SUFFIXES:
        return "lines"
    return "parquet" if suffix in PARQUET_SUFFIXES else "text"


def is_endless(path: Path) -> bool:
    """Whether a path is a pipe or a device, whose reading may never end."""
    return path.exists() and not path.is_file()


def _units(inputs: Sequence[Path]) -> Iterator[Unit]:
    texts: list[tuple[str, int]] = []
    gathered = 0
    for path in _files(inputs):
        kind = "text" if is_endless(path) else _kind_of(path)
        if kind == "text":
            texts.append((str(path), _size_of(path)))
            gathered += texts[-1][1]
        if kind != "text" or gathered >= UNIT_BYTES:
            yield from _text_unit(texts)
            gathered = 0
        if kind != "text":
            yield from _line_units(path) if kind == "lines" else _row_units(path)
    yield from _text_unit(texts)


def _check(given: Path) -> None:
    if not given.exists():
        raise InvalidDataset(
            f"input {str(given)!r} does not exist; name files or folders", code="Missing"
        )
    if not given.is_file() and not given.is_dir():
        raise InvalidDataset(
            f"input {str(given)!r} is neither a file nor a folder; write its text into a .txt, "
            ".jsonl or .parquet file",
            code="Unsupported",
        )
    if given.suffix.lower() == ".json" and not given.is_dir():
        raise InvalidDataset(
            f"input {str(given)!r} is JSON, whose brackets and keys would be trained on; "
            "write one object a line into a .jsonl file",
            code="Unsupported",
        )


def _files(inputs: Iterable[Path]) -> Iterator[Path]:
    """All files to read, each once: in the order of the inputs, sorted within a folder."""
    seen: set[str] = set()
    for given in inputs:
        for path, real in _files_of(given) if given.is_dir() else ((given, _real(given)),):
            if real not in seen:
                seen.add(real)
                yield path


def _files_of(folder: Path) -> list[tuple[Path, str]]:
    """Files with their real paths, but for hidden ones; linked folders are left out."""
    real = _real(folder)
    names = sorted(name for name in _names_in(folder) if name.lower().endswith(SUFFIXES))
    paths = ((folder / name, name) for name in names)
    return [(path, _real(path) if path.is_symlink() else f"{real}/{name}") for path, name in paths]


def _names_in(folder: Path) -> Iterator[str]:
    """Of all files below it but hidden ones, relative to it."""
    top = str(folder)
    for parent, folders, names in os.walk(top):
        folders[:] = (name for name in folders if not name.startswith("."))
        below = parent[len(top) :].strip("/")
        start = f"{below}/" if below else ""
        yield from (f"{start}{name}" for name in names if not name.startswith("."))


def _real(path: Path) -> str:
    return os.path.realpath(path)


def _state_of(file: str) -> tuple[int, int] | None:
    """Signature that changes with the file; None where it cannot be read."""
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # a broken link: it counts among what could not be read
        return 0


def _text_unit(texts: list[tuple[str, int]]) -> Iterator[Unit]:
    """The text files so far as one unit, and none of them are left."""
    if texts:
        size = sum(size for _, size in texts)
        yield Unit("text", tuple(file for file, _ in texts), 0, len(texts), size)
        texts.clear()


def _line_units(path: Path) -> Iterator[Unit]:
    size = _size_of(path)
    for start in range(0, size, UNIT_BYTES):
        stop = min(size, start + UNIT_BYTES)
        yield Unit("lines", (str(path),), start, stop, stop - start)


def _row_units(path: Path) -> Iterator[Unit]:
    groups = open_parquet(str(path)).metadata
    sizes = [groups.row_group(index).total_byte_size for index in range(groups.num_row_groups)]
    start = 0
    for index, _ in enumerate(sizes):
        size = sum(sizes[start : index + 1])
        if size >= UNIT_BYTES or index + 1 == len(sizes):
            yield Unit("parquet", (str(path),), start, index + 1, size)
            start = index + 1
