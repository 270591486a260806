"""How the kernel is compiled, and where its machine code is kept.

numba keeps compiled functions by their own file's time stamp and does not notice a change in a
function that they call, so the folder of the cache is named by a digest of the whole package.
Where that folder cannot be written (an image with a read-only file system) its content, filled
when the image was built, is copied to a temporary folder: numba insists on one that it can write.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., object])

_PACKAGE = Path(__file__).parent


def cache_folder() -> Path:
    """The folder for compiled functions; made if it is not there."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(_PACKAGE.glob("*.py")):
        digest.update(path.read_bytes())
    name = f"numba-{numba.__version__}-{digest.hexdigest()}"
    folder = _PACKAGE / "__pycache__" / name
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK):
        return folder
    copy = Path(tempfile.gettempdir()) / f"heddle-kernel-{os.getuid()}-{name}"
    if folder.is_dir() and not copy.is_dir():
        shutil.copytree(folder, copy, dirs_exist_ok=True)
    copy.mkdir(parents=True, exist_ok=True)
    return copy


numba.config.CACHE_DIR = str(cache_folder())


def is_compiled() -> bool:
    """Whether functions of these very sources were compiled before, and are only loaded."""
    return bool(numba.config.DISABLE_JIT) or any(Path(numba.config.CACHE_DIR).rglob("*.nbi"))


def jit(function: Function) -> Function:
    """Compile with numba; a division by zero gives infinity, as in numpy.

    Other threads of the process go on meanwhile: what the kernel works in belongs to one search.
    """
    compiled: Function = numba.njit(cache=True, error_model="numpy", nogil=True)(function)
    return compiled


def inlined(function: Function) -> Function:
    """Compile into every caller, as is worth it outside of loops, and in those that are short.

    A call holds each array of its arguments once more and lets it go again, which for the dozens of
    `Tables` takes longer than many a function; written into the caller, it takes little.
    """
    return numba.njit(cache=True, error_model="numpy", nogil=True, inline="always")(function)
