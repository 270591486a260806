"""The error that a block or a command must end with.

Of a block by its class, code and field; sentences are the law of `tests/laws/test_bad_values.py`
and `tests/test_bad_input.py`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import pytest

from heddle.main import main
from planner.errors import HeddleError

WORDS = 30  # of a sentence


@contextmanager
def refused(
    kind: type[HeddleError], code: str, field: str | None = None
) -> Iterator[pytest.ExceptionInfo[HeddleError]]:
    """Check that the block is refused in one line, with this code and about this field.

    Args:
        kind: class of the error.
        code: of `planner.errors.CODES`.
        field: of what is given; None: the mistake is of none.
    """
    with pytest.raises(kind) as found:
        yield found
    assert (found.value.code, found.value.field) == (code, field), str(found.value)
    assert "\n" not in str(found.value)


def command_refused(*arguments: object, cwd: Path | str = ".", **environment: str) -> str:
    """The one sentence of `heddle` with these arguments, which ends with 2 in this process."""
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()) as heard:
        patch.setattr(sys, "argv", ["heddle", *map(str, arguments)])
        patch.chdir(cwd)
        for name, value in environment.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
    return sentence(ended.value.code, heard.getvalue())


def sentence(status: object, text: str) -> str:
    """The one sentence on standard error of a command that ended with 2."""
    said = [line for line in text.splitlines() if line.startswith("Error: ")]
    assert (status, len(said)) == (2, 1), text
    assert "Traceback" not in text
    assert len(said[0].removeprefix("Error: ").split()) <= WORDS, said[0]
    return said[0]
