"""Pairs that were made before, kept so that the same input is not read again.

A folder a pair, named by a digest of all units, their files and the settings: another input is
another name.  Invariant: a folder with its name is whole, as it gets it last; whoever takes a pair
links it, so that nobody's pair goes when it is removed here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.wording import reason_of

MOST = 4  # pairs; one of the standard library's sources has some hundred MB
_SUMMARY, _PAIR = "summary.json", "pair"


def name_of(units: Sequence[str]) -> str:
    """Of the pair of these units.

    Args:
        units: digests of the units, in order.
    """
    return hashlib.sha256("\n".join(units).encode()).hexdigest()[:24]


def take(folder: Path, name: str, output: Path, suffixes: Sequence[str]) -> dict[str, Any] | None:
    """Put a kept pair where the output is wanted; its summary, or None where none is kept.

    Args:
        folder: of all kept pairs.
        name: of this one.
        output: prefix of the pair.
        suffixes: of its files; the last one is put last.
    """
    kept = folder / name
    try:
        known = json.loads((kept / _SUMMARY).read_bytes())
        summary: dict[str, Any] = known["summary"]
        if known["sizes"] != _sizes(kept / _PAIR, suffixes):  # a power failure cuts files off
            return None
        for suffix in suffixes:
            final = Path(f"{output}{suffix}")
            final.unlink(missing_ok=True)
            if suffix in known["sizes"]:
                _link(Path(f"{kept / _PAIR}{suffix}"), final)
        os.utime(kept)  # it is the last one to go
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return summary


def keep(
    folder: Path, name: str, output: Path, suffixes: Sequence[str], summary: dict[str, Any]
) -> str:
    """Keep a pair that was made; why it is not kept, in words, or "".

    What is not kept is made again next time.
    """
    draft = folder / f"{name}.{secrets.token_hex(4)}"
    try:
        draft.mkdir(parents=True)
        sizes = _sizes(output, suffixes)
        for suffix in sizes:
            _link(Path(f"{output}{suffix}"), Path(f"{draft / _PAIR}{suffix}"))
        text = json.dumps({"summary": summary, "sizes": sizes})
        (draft / _SUMMARY).write_text(text, encoding="utf-8")
        shutil.rmtree(folder / name, ignore_errors=True)  # it could not be taken
        draft.rename(folder / name)
        by_use = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in by_use[:-MOST]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):  # another run has kept it meanwhile
            return ""
        return reason_of(error).lower()
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return ""


def _sizes(prefix: Path, suffixes: Sequence[str]) -> dict[str, int]:
    """Of the files that there are."""
    files = {suffix: Path(f"{prefix}{suffix}") for suffix in suffixes}
    return {suffix: file.stat().st_size for suffix, file in files.items() if file.exists()}


def _link(source: Path, target: Path) -> None:
    """A second name of a file, or a copy on another disk."""
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)
