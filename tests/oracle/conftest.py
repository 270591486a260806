"""`make test` runs a tenth of the oracle's cases; `make test-system` runs the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARE = 10
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before marks choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that wait for the whole system's tests."""
    cases: dict[str, int] = {}
    for item in items:
        if item.path.parent != HERE or not hasattr(item, "callspec"):
            continue
        test = item.nodeid.partition("[")[0]
        number = cases[test] = cases.get(test, -1) + 1
        if number % SHARE:
            item.add_marker(pytest.mark.system)
