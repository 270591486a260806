"""The error that a block must end with, by its class, code and field; sentences are the law of
`tests/laws/test_bad_values.py` and `tests/test_bad_input.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

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
