"""Run a click command as a program.

Invariant: an error that a user can cause ends in one sentence on stderr and exit code 2, never in a
traceback; a terminal without UTF-8 gets what it can show.
Source: sysexits; 130 and 141 are what a shell says of SIGINT and SIGPIPE.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import click

from planner.errors import HeddleError
from planner.failure import Failure

OPTIONAL = frozenset(  # modules that come with an extra of the package only
    (
        *("aiohttp", "botocore", "deepspeed", "kopf", "kubernetes", "prometheus_client"),
        *("pyarrow", "tokenizers", "torch", "xxhash"),
    )
)
INTERRUPTED = 130
CLOSED_PIPE = 141
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # anything may be written when a disk gets full
# what becomes of a path that may not be looked at, or cannot be one
REFUSED = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EROFS)


def run(
    command: click.Command,
    names: Mapping[str, str] = MappingProxyType({}),
    *,
    extra: str = "all",
    is_child: bool = False,
) -> NoReturn:
    """Run a command with the arguments of this program, and exit.

    Args:
        command: what runs.
        names: how the program calls the fields of errors.
        extra: of the package, which holds all that the command imports.
        is_child: a process of Heddle reads the error: it is a line of `Failure`, not a sentence.
    """
    _escape_what_cannot_be_shown()
    try:
        status = _status(command)
        gc.freeze()  # else the interpreter looks for garbage once more before it ends: 0.3 s
    except click.ClickException as error:
        if is_child:
            _say(HeddleError(error.format_message(), code="Malformed"), names, is_child)
        else:
            error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _forget_output()
        sys.exit(CLOSED_PIPE)
    except (HeddleError, ModuleNotFoundError, OSError) as error:
        refusal = _refusal(error, extra)
        if refusal is None:
            raise
        if isinstance(error, OSError) and error.errno in FULL:
            _forget_output()
        _say(refusal, names, is_child)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


def not_installed(error: ModuleNotFoundError, extra: str) -> Exception:
    """The error that names the extra of the package which holds the module.

    No extra holds a module that nobody foresaw: the error stays.
    """
    if str(error.name).partition(".")[0] not in OPTIONAL:
        return error
    return HeddleError(
        f"this command needs {error.name}, which is not installed; in the checkout of "
        f"Heddle run: pip install '.[{extra}]'",
        code="Missing",
    )


def _refusal(error: Exception, extra: str) -> HeddleError | None:
    """The error that a user can read; None: nobody foresaw it."""
    if isinstance(error, ModuleNotFoundError):
        error = not_installed(error, extra)
    if isinstance(error, HeddleError):
        return error
    if not isinstance(error, OSError):
        return None
    if error.errno in REFUSED and error.filename is not None:
        return HeddleError(
            f"{error.filename} cannot be used: {error.strerror}; name another path",
            code="Refused",
        )
    if error.errno not in FULL:
        return None
    where = error.filename or "the output"
    return HeddleError(f"{where} cannot be written: {error.strerror}; make room", code="Unwritable")


def _say(error: HeddleError, names: Mapping[str, str], is_child: bool) -> None:
    failure = Failure.of(error, names)
    click.echo(failure.to_line() if is_child else f"Error: {failure.message}", err=True)


def _status(command: click.Command) -> object:
    """Result of the command; a pipe that was closed is an error, where click exits with 1."""
    output = sys.stdout
    try:
        return command(standalone_mode=False)
    except SystemExit:
        if sys.stdout is output:  # click puts a wrapper there once the pipe is closed
            raise
        raise BrokenPipeError from None


def _escape_what_cannot_be_shown() -> None:
    """Where a terminal is not UTF-8, a letter that it lacks is no reason to stop."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _forget_output() -> None:
    """Let the interpreter flush into nothing at its end, where it would complain once more."""
    with contextlib.suppress(OSError, AttributeError), Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
