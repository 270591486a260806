"""Make a Megatron .bin/.idx pair from text, JSON Lines and Parquet: `heddle data prepare`.

The input is cut into units, each unit becomes a part on disk, in whatever process and order, and
the parts are joined in the order of the input: the same input gives the same bytes, however many
processes read it.  A command that was killed goes on with the parts that are whole.
"""

from __future__ import annotations

import errno
import functools
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from planner.cores import usable_cores
from planner.wording import counted
from worker.data.index import write_index
from worker.data.making.kept import keep, name_of, take
from worker.data.making.parts import Part, lengths_of, read_part, token_type, write_part
from worker.data.making.readers import Keys
from worker.data.making.tokenizing import Tokenization, tokenization
from worker.data.making.units import SUFFIXES as READ
from worker.data.making.units import Unit, each_unit
from worker.errors import InvalidDataset

SUFFIXES = (".bin", ".mask", ".json", ".idx")  # the index comes last: without it there is no pair
_KEPT = ("documents", "skipped", "text_bytes", "tokens", "vocab", "first_skipped")
AHEAD = 2  # units that wait for each process
Progress = Callable[[int, int], None]  # bytes done, of how many


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDataset:
    """Figures of a written data set.

    Attributes:
        prefix: of the pair.
        documents: that are in it.
        skipped: files that could not be read or are not UTF-8 text.
        text_bytes: of all documents.
        tokens: of all documents.
        vocab: size of the tokenizer's vocabulary.
        resumed: units that an earlier run had read already.
        first_skipped: path of the first skipped file; "" if there is none.
        unkept: why the cache does not have the pair, in words; "" if it does, or none is asked for.
    """

    prefix: str
    documents: int
    skipped: int
    text_bytes: int
    tokens: int
    vocab: int
    resumed: int = 0
    first_skipped: str = ""
    unkept: str = ""

    def __str__(self) -> str:
        text = (
            f"wrote {self.prefix}.bin and .idx: {counted(self.documents, 'document')}, "
            f"{self.text_bytes:,} bytes of text, {self.tokens:,} tokens "
            f"of a vocabulary of {self.vocab:,}"
        )
        if self.skipped:
            text += f"; skipped {_skipped(self.skipped, self.first_skipped)}"
        if self.resumed:
            text += f"; {counted(self.resumed, 'part')} of an earlier run went in"
        if self.unkept:
            text += f"; not kept in the cache: {self.unkept}"
        return text


@dataclass(slots=True)
class _Told:
    """How far the reading is, and who wants to know."""

    progress: Progress | None
    total: int
    done: int = 0

    def of(self, unit: Unit) -> None:
        """A unit is read."""
        self.done = min(self.total, self.done + unit.size)
        if self.progress is not None:
            self.progress(self.done, self.total)


class _Work(NamedTuple):
    """Settings that each process is told once."""

    folder: Path
    keys: Keys
    tokenizer: Path | None
    end: str | None


def prepare(
    inputs: Sequence[Path],
    output: Path,
    max_bytes: int | None = None,
    tokenizer: Path | None = None,
    *,
    keys: Keys = Keys(),  # noqa: B008 # a tuple
    end: str | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
    cache: Path | None = None,
) -> PreparedDataset:
    """Write a dataset from files and folders.

    An older pair of that name is replaced when all is written.

    Args:
        inputs: files, and folders whose files are taken in sorted order.
        output: prefix of the pair.
        max_bytes: stop after this much text; the last document is cut.  One process reads then.
        tokenizer: a tokenizer.json of the `tokenizers` library; bytes are the tokens without it.
        keys: which values of a record are read.
        end: the token that ends a document; see `tokenization`.
        processes: that read; None: one a core.
        progress: told of each unit that is read.
        cache: folder of pairs; the pair is taken from there if it was made before, and kept there.

    Raises:
        InvalidDataset: an input is missing, damaged or plain JSON, nothing in them is text, or the
            output cannot be written.
    """
    how, found = tokenization(tokenizer, end), each_unit(inputs)
    units = list(found) if max_bytes is None else []
    folder = Path(f"{output}.parts")
    _make_folder(folder)
    work = _Work(folder, keys, tokenizer, end)
    names = [unit.digest(keys, how.digest, how.end, None) for unit in units]
    if cache is not None and names and (known := take(cache, name_of(names), output, SUFFIXES)):
        shutil.rmtree(folder, ignore_errors=True)
        return PreparedDataset(prefix=str(output), **known)
    had = sum(read_part(folder, name) is not None for name in names)
    total = sum(unit.size for unit in units) if max_bytes is None else max_bytes
    told = _Told(progress, total)
    try:
        if max_bytes is not None:
            parts = _read_up_to(max_bytes, work, how, found, told)
        else:
            parts = _read_all(work, how, dict(zip(names, units, strict=True)), processes, told)
        in_order = [parts[name] for name in names or parts]
        if not any(part.documents for part in in_order):
            shutil.rmtree(folder, ignore_errors=True)
            raise _without_text(inputs, in_order)
        _join(output, folder, names or list(parts), how, keys)
    except OSError as error:
        raise _unwritable(error.filename or output, error) from None
    shutil.rmtree(folder, ignore_errors=True)
    made = PreparedDataset(
        prefix=str(output),
        documents=sum(part.documents for part in in_order),
        skipped=sum(part.skipped for part in in_order),
        text_bytes=sum(part.text_bytes for part in in_order),
        tokens=sum(part.tokens for part in in_order),
        vocab=how.vocab,
        resumed=had,
        first_skipped=_first_skipped(in_order),
    )
    if cache is not None and names:
        known = {key: value for key, value in asdict(made).items() if key in _KEPT}
        unkept = keep(cache, name_of(names), output, SUFFIXES, known)
        return replace(made, unkept=unkept)
    return made


def _skipped(number: int, first: str) -> str:
    which = f" ({'first ' if number > 1 else ''}{first!r})" if first else ""
    return counted(number, "unreadable or binary file") + which


def _first_skipped(parts: Iterable[Part]) -> str:
    return next((part.first_skipped for part in parts if part.skipped), "")


def _without_text(inputs: Sequence[Path], parts: Sequence[Part]) -> InvalidDataset:
    skipped = sum(part.skipped for part in parts)
    why = f"; skipped {_skipped(skipped, _first_skipped(parts))}" if skipped else ""
    return InvalidDataset(
        f"there is no text in {', '.join(map(str, inputs))}{why}; name text files, or "
        f"folders of {', '.join(READ)} files",
        code="Missing",
    )


def _read_up_to(
    max_bytes: int,
    work: _Work,
    how: Tokenization,
    units: Iterator[Unit],
    told: _Told,
) -> dict[str, Part]:
    """One unit after the other, for what a unit may hold is known when those before it are read."""
    parts: dict[str, Part] = {}
    left = max_bytes
    while left > 0 and (unit := next(units, None)):
        name = unit.digest(work.keys, how.digest, how.end, max_bytes)
        parts[name] = write_part(work.folder, name, unit, work.keys, how, left)
        left -= parts[name].text_bytes
        told.of(unit)
    return parts


def _read_all(
    work: _Work,
    how: Tokenization,
    units: dict[str, Unit],
    processes: int | None,
    told: _Told,
) -> dict[str, Part]:
    """The parts of all units, by processes side by side where there is more than one unit."""
    parts: dict[str, Part] = {}
    missing: list[tuple[str, Unit]] = []
    for name, unit in units.items():
        found = read_part(work.folder, name)
        if found is None:
            missing.append((name, unit))
        else:
            parts[name] = found
            told.of(unit)
    count = min(processes or usable_cores(), len(missing))
    if count <= 1:
        for name, unit in missing:
            parts[name] = write_part(work.folder, name, unit, work.keys, how, None)
            told.of(unit)
        return parts
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin) as pool:
        try:
            for name, part in _in_any_order(pool, work, missing, count):
                parts[name] = part
                told.of(units[name])
        except BrokenProcessPool:
            raise InvalidDataset(
                "a process that read the input was killed, mostly for want of memory; run the "
                "command again, with fewer processes: it goes on where it was",
                field="processes",
                code="Failed",
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return parts


def _in_any_order(
    pool: ProcessPoolExecutor, work: _Work, units: Sequence[tuple[str, Unit]], count: int
) -> Iterator[tuple[str, Part]]:
    """(name, part) as they are done; few are submitted ahead, for there may be millions."""
    waiting: dict[Future[Part], str] = {}
    left = iter(units)
    while True:
        for name, unit in left:
            waiting[pool.submit(_read_unit, work, name, unit)] = name
            if len(waiting) >= count * AHEAD:
                break
        if not waiting:
            return
        done, _ = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            yield waiting.pop(future), future.result()


def _begin() -> None:
    """Ctrl-C is for the command, not for its processes; when the command is killed, they end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, name="end-with-parent", daemon=True).start()


def _read_unit(work: _Work, name: str, unit: Unit) -> Part:
    """In another process."""
    return write_part(work.folder, name, unit, work.keys, _tokenization_here(work), None)


@functools.lru_cache(maxsize=1)
def _tokenization_here(work: _Work) -> Tokenization:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    return tokenization(work.tokenizer, work.end)


def _join(output: Path, folder: Path, names: list[str], how: Tokenization, keys: Keys) -> None:
    """Write the pair from its parts, and put it where an older one was."""
    lengths = lengths_of(folder, names)
    drafts = {suffix: folder / f"all{suffix}" for suffix in SUFFIXES}
    for suffix in (".bin", ".mask"):
        with drafts[suffix].open("wb") as file:
            for name in names:
                with (folder / f"{name}{suffix}").open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)
    if keys.prompt is None:
        drafts[".mask"].unlink()
    notes = {
        "vocab": how.vocab,
        "end_of_document": how.end,
        "tokenizer_sha256": how.digest,
        "documents": len(lengths),
        "tokens": int(lengths.sum(dtype="int64")),
    }
    drafts[".json"].write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")
    with drafts[".idx"].open("wb") as file:
        write_index(file, lengths, token_type(how.vocab))
    Path(f"{output}.idx").unlink(missing_ok=True)
    for suffix, draft in drafts.items():
        final = Path(f"{output}{suffix}")
        if draft.exists():
            draft.replace(final)
        else:
            final.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(path: object, error: OSError) -> InvalidDataset:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "make room and run it again, which goes on" if is_full else "choose another output"
    return InvalidDataset(
        f"cannot write {str(path)!r}: {(error.strerror or str(error)).lower()}; {remedy}",
        code="Unwritable",
    )
