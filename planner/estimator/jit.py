"""How the estimator is compiled, and where its machine code is kept.

numba keeps compiled functions by their own file's time stamp and does not notice a change in a
function that they call, so the folder of the cache is named by a digest of all that is compiled.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numba

import planner.estimator.reference_type  # noqa: F401  (compiled functions take references)

Function = TypeVar("Function", bound=Callable[..., object])

_ROOT = Path(__file__).parents[2]
NUMBERS = re.compile(r"(tuple\[)?(None|bool|int|float)(, (bool|int|float))*\]?")
_IMPORT = re.compile(r"^from (planner(?:\.\w+)+) import (\w+)", re.MULTILINE)
_DEFINES = re.compile(rf"(?m)^from {re.escape(__name__)} import .*\b(jit|inlined|allocating)\b")
_COMPLETE = "complete"  # this file is there once every function is compiled
BESIDE = ("by_reference.py", "reference_type.py")  # how tables are handed to compiled code


def compiled_sources() -> list[Path]:
    """The files that compiled code comes from: those that define it, and what these import."""
    texts = {path: path.read_text(encoding="utf-8") for path in (_ROOT / "planner").rglob("*.py")}
    defining = [path for path, text in texts.items() if _DEFINES.search(text)]
    found = {Path(__file__), *map(Path(__file__).with_name, BESIDE), *defining}
    for path in defining:
        for module, name in _IMPORT.findall(texts[path]):
            parts = _ROOT.joinpath(*module.split("."))
            found |= {parts.with_suffix(".py"), parts / f"{name}.py"}
    return sorted(found & texts.keys())


def cache_folder() -> Path:
    """The folder for compiled functions; made if it is not there."""
    digest = hashlib.blake2b(digest_size=6)
    for path in compiled_sources():
        digest.update(path.read_bytes())
    name = f"numba-{numba.__version__}-{digest.hexdigest()}"
    folder = Path(__file__).parent / "__pycache__" / name
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK):
        return folder
    copy = Path(tempfile.gettempdir()) / f"heddle-kernel-{os.getuid()}-{name}"
    if folder.is_dir() and not copy.is_dir():
        shutil.copytree(folder, copy, dirs_exist_ok=True)
    copy.mkdir(parents=True, exist_ok=True)
    return copy


FOLDER = cache_folder()


def is_compiled() -> bool:
    """Whether all functions of these very sources were compiled before, and are only loaded."""
    return bool(numba.config.DISABLE_JIT) or (FOLDER / _COMPLETE).exists()


def note_compiled() -> None:
    """Remember that all functions are compiled."""
    (FOLDER / _COMPLETE).touch()


def jit(function: Function) -> Function:
    """Compile a function that makes no arrays; a division by zero gives infinity, as in numpy.

    numba counts who holds an array, and a function takes hold of all arrays of its arguments while
    it runs: of `Tables` and `UnplacedPlan` that took twice as long as the planner's own work, and
    most where several threads hold the same tables.  Here arrays are borrowed and nothing is
    counted, so that none can be made (numba refuses to compile that) or given back.  Other threads
    of the process go on meanwhile: what the estimator works in belongs to one search.

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
    """Compile into every caller: what is short, has one caller, or gives back views of arrays.

    Every function that is not inlined is compiled on its own and once more into all that call it.
    """
    return _compiled(function, inline="always")


def _compiled(function: Function, **options: object) -> Function:
    with _own_cache():
        compiled: Function = numba.njit(
            cache=True, error_model="numpy", nogil=True, no_cfunc_wrapper=True, **options
        )(function)
    return compiled


@contextlib.contextmanager
def _own_cache() -> Iterator[None]:
    """Our folder for functions that are declared meanwhile; those of other programs keep theirs."""
    theirs = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(FOLDER)  # a function asks for it when it is declared
    try:
        yield
    finally:
        numba.config.CACHE_DIR = theirs
