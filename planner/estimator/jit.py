"""How the kernel is compiled, and where its machine code is kept.

numba keeps compiled functions by their own file's time stamp and does not notice a change in a
function that they call, so the folder of the cache is named by a digest of all that may be
compiled: the estimator, and whoever imports it.
Where that folder cannot be written (an image with a read-only file system) its content, filled
when the image was built, is copied to a temporary folder: numba insists on one that it can write.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., object])

_FOLDER = Path(__file__).parent
NUMBERS = re.compile(r"(tuple\[)?(None|bool|int|float)(, (bool|int|float))*\]?")


def cache_folder() -> Path:
    """The folder for compiled functions; made if it is not there."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(_FOLDER.parent.rglob("*.py")):
        source = path.read_bytes()
        if path.is_relative_to(_FOLDER) or b"planner.estimator" in source:
            digest.update(source)
    name = f"numba-{numba.__version__}-{digest.hexdigest()}"
    folder = _FOLDER / "__pycache__" / name
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
    """Compile a function that makes no arrays; a division by zero gives infinity, as in numpy.

    numba counts who holds an array, and a function takes hold of all arrays of its arguments while
    it runs: of `Tables` and `Bag` that took twice as long as the planner's own work, and most where
    several threads hold the same tables.  Here arrays are borrowed and nothing is counted, so that
    none can be made (numba refuses to compile that) or given back.  Other threads of the process go
    on meanwhile: what the kernel works in belongs to one search.

    Raises:
        TypeError: the function says that it returns something else than numbers.
    """
    back = str(function.__annotations__.get("return"))
    if not NUMBERS.fullmatch(back):
        message = f"{function.__name__} returns {back}; a function that borrows returns numbers"
        raise TypeError(message)
    return _compiled(function, _nrt=False)


def allocating(function: Function) -> Function:
    """Compile a function that makes arrays; it counts who holds them, so keep it out of loops.

    One that gives arrays back must not be called by one that borrows, which never lets them go.
    """
    return _compiled(function, _nrt=True)  # else it would be as whoever calls it first


def inlined(function: Function) -> Function:
    """Compile into every caller, as is worth it outside of loops, and in those that are short.

    Two words for each array of `Tables` are handed over in a call, which takes longer than many a
    function.  Views of arrays can be given back only so.
    """
    return _compiled(function, inline="always")


def _compiled(function: Function, **options: object) -> Function:
    compile_it = numba.njit(cache=True, error_model="numpy", nogil=True, **options)
    compiled: Function = compile_it(function)
    return compiled
