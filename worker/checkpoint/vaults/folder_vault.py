"""A vault in a folder that all ranks see: a disk of this machine, or a volume of a cluster.

Invariants: no listing shows a draft; a file is on disk before its name is, and its name before the
operation returns.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path

from planner.wording import reason_of
from worker.checkpoint.vaults.drafts import is_draft, is_left, new_draft
from worker.checkpoint.vaults.vault import NAME, Facts, VaultFailed, Why, check_name, whole
from worker.weights.folder_names import flush_names

SYNC_BYTES = 64 << 20  # of a file; so its writer is not far ahead of the disk
_WHY: dict[int | None, Why] = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
    errno.ENOENT: "missing",
    errno.EROFS: "refused",
    errno.EACCES: "refused",
    errno.EPERM: "refused",
}
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class FolderVault:
    """Objects are files below a folder, which is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, chunks: Iterable[bytes | memoryview], num_bytes: int) -> None:
        """Write a draft, bring it to the disk, then name it."""
        path = self._path(name)
        with self._told(name), self._draft(path, whole(chunks, num_bytes, name)) as draft:
            draft.replace(path)
            flush_names(path.parent)

    def commit(self, name: str, content: bytes) -> bool:
        """Link a draft under the name, which fails where the name is taken."""
        path = self._path(name)
        with self._told(name), self._draft(path, [content]) as draft:
            try:
                os.link(draft, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return _create(path, content)
            flush_names(path.parent)
        return True

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read a range of a file."""
        path = self._path(name)
        with self._told(name), path.open("rb") as opened:
            opened.seek(start)
            found = opened.read() if stop is None else opened.read(stop - start)
        if stop is not None and len(found) < stop - start:
            raise VaultFailed(f"{path} ends before byte {stop}", "cut")
        return found

    def names(self, prefix: str = "") -> tuple[str, ...]:
        """Walk the folder; one that is not there yet holds nothing."""
        with self._told(prefix):
            return tuple(sorted(name for name in self._walk() if name.startswith(prefix)))

    def facts(self, prefix: str = "") -> dict[str, Facts]:
        """Ask the file system; a file that goes meanwhile is left out."""
        found: dict[str, Facts] = {}
        for name in self.names(prefix):
            with self._told(name), suppress(FileNotFoundError):
                stat = self._path(name).stat()
                found[name] = Facts(stat.st_size, stat.st_mtime)
        return found

    def remove(self, name: str) -> None:
        """Delete a file, and its folder once that is empty."""
        path = self._path(name)
        with self._told(name):
            path.unlink(missing_ok=True)
            self._remove_empty(path.parent)

    def tidy(self, older_than_s: float) -> None:
        """Delete drafts that were last written before that, or by a dead process of this host."""
        with self._told(""):
            for path in self._files():
                with suppress(FileNotFoundError):  # somebody else tidies too
                    if is_draft(path.name) and is_left(path, older_than_s):
                        path.unlink()
                        self._remove_empty(path.parent)

    def _path(self, name: str) -> Path:
        check_name(name)
        return self._folder / name

    def _remove_empty(self, folder: Path) -> None:
        """Remove a folder that nothing is left in, and those above it."""
        with suppress(OSError):  # another file is in it, or it is gone
            while folder != self._folder:
                folder.rmdir()
                folder = folder.parent

    def _walk(self) -> Iterator[str]:
        for path in self._files():
            name = path.relative_to(self._folder).as_posix()
            if NAME.fullmatch(name):  # neither a draft nor a file of somebody else
                yield name

    def _files(self) -> Iterator[Path]:
        for folder, _, files in os.walk(self._folder, onerror=self._tell):
            yield from (Path(folder) / file for file in files)

    def _tell(self, error: OSError) -> None:
        """Tell why a folder cannot be listed, unless it is not there."""
        if isinstance(error, NotADirectoryError):
            raise VaultFailed(f"{self._folder} is no folder; give one", "folder") from error
        if not isinstance(error, FileNotFoundError):
            raise error

    @contextmanager
    def _draft(self, path: Path, chunks: Iterable[bytes | memoryview]) -> Iterator[Path]:
        """A file with this content on disk; it is gone at the end unless it was renamed."""
        _make(path.parent)
        with new_draft(path) as (draft, opened):
            unsynced = 0
            for chunk in chunks:
                unsynced += opened.write(chunk)
                if unsynced >= SYNC_BYTES:
                    _sync(opened)
                    unsynced = 0
            _sync(opened)
            yield draft

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Tell errors of the disk as those of a vault."""
        try:
            yield
        except OSError as error:
            why = _WHY.get(error.errno, "other")
            raise VaultFailed(f"{self._folder / name}: {reason_of(error)}", why) from error


def _create(path: Path, content: bytes) -> bool:
    """Create a file where there are no links; a cut one is known by its digest."""
    try:
        with path.open("xb") as opened:
            opened.write(content)
            _sync(opened)
    except FileExistsError:
        return False
    flush_names(path.parent)
    return True


def _sync(opened: BufferedWriter) -> None:
    """Bring what was written of a file to the disk."""
    opened.flush()
    os.fsync(opened.fileno())


def _make(folder: Path) -> None:
    """Make a folder and those above it, each on disk before the next."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        flush_names(folder.parent)
